// Package models is the catalog of diffusion models: the table of families, and what the layers above need from all of
// them. Describing a file reads little more than its header. A description's Load reads the weights.
//
// Each family is a folder whose Family function says everything about it; docs/adding-a-model.md is the recipe for
// adding one. What families share is in family (the descriptor, loading), layers (common parts of blocks, position
// tables) and weights (checkpoints into tagged structs). latent, sampling, text, tokenizer, vae and audio are the other
// parts of a pipeline.
package models

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/auraflow"
	"patchbay/models/control"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/flux"
	"patchbay/models/flux2"
	"patchbay/models/flux3"
	"patchbay/models/hunyuan"
	"patchbay/models/krea2"
	"patchbay/models/ltx"
	"patchbay/models/minimaxh3"
	"patchbay/models/pixart"
	"patchbay/models/qwenimage"
	"patchbay/models/qwenimage21"
	"patchbay/models/sd3"
	"patchbay/models/sdxl"
	"patchbay/models/wan"
	"patchbay/models/weights"
	"patchbay/models/zimage"
)

// Families returns the table of supported families.
func Families() []family.Family {
	return []family.Family{
		flux.Family(),
		sd3.Family(),
		pixart.Family(),
		hunyuan.Family(),
		zimage.Family(),
		qwenimage.Family(),
		flux2.Family(),
		krea2.Family(),
		flux.Chroma(),
		zimage.Lumina2(),
		auraflow.Family(),
		qwenimage21.Family(),
		flux3.Family(),
		sdxl.Family(),
		sdxl.Refiner(),
		sdxl.SD1(),
		wan.Family(),
		minimaxh3.Family(),
		ltx.Family(),
	}
}

// OpenDiffusion detects which model a checkpoint holds, alone or inside a full checkpoint, and describes it. meta is
// the file's metadata: a JSON object under "config" may supply what names and shapes do not tell (heads, rotation axes,
// latent scale and shift, sampling.shift). changes are applied to the stored tensors first, on behalf of adapters. For
// files of other kinds, the error says what they look like and what is supported.
func OpenDiffusion(set *weights.Set, meta map[string]string, changes ...weights.Change) (*family.Diffusion, error) {
	return family.Open(Families(), set, meta, changes...)
}

// OpenControl describes the control net in a checkpoint. meta is read like that of a model of the net's family. For
// files of other kinds and unsupported nets, the error says what they look like.
func OpenControl(set *weights.Set, meta map[string]string) (*control.Net, error) {
	return control.Open(Families(), set, meta)
}

// ControlBeside returns the control net in set together with the tensors that it borrows from model, its base model.
func ControlBeside(set, model *weights.Set) (*weights.Set, error) {
	return control.WithBorrowed(Families(), set, model)
}

// OpenPatch describes the model patch in a checkpoint. For files of other kinds, the error says what they look like.
func OpenPatch(set *weights.Set) (*control.Net, error) { return control.OpenPatch(Families(), set) }

// GuessKind says what a file seems to be, for errors where another kind was expected.
func GuessKind(set *weights.Set) string { return family.GuessKind(Families(), set) }

// Named returns the family with the given name (dit.Spec.Family).
func Named(name string) (family.Family, bool) {
	for _, f := range Families() {
		if f.Name == name {
			return f, true
		}
	}
	return family.Family{}, false
}

// TextTypes maps the types that loaders of text encoders accept (ComfyUI's input "type") to how prompts are encoded.
func TextTypes() map[string]family.Text {
	out := map[string]family.Text{}
	for _, f := range Families() {
		for _, t := range f.Text.Types {
			out[t] = f.Text
		}
	}
	return out
}

// Adapt returns a model that computes with the weights of m plus additions (LoRA) and shares m's memory: nothing is
// merged or packed again. m must come from Diffusion.Load, whole or in part, and stay open as long as the result is
// used. Closing the result frees only the additions. Adapt returns an error if names or shapes do not fit or memory
// runs out.
func Adapt(ops engine.Ops, m dit.Model, additions []weights.LowRank) (dit.Model, error) {
	a, ok := dit.As[interface {
		dit.Model
		Adapt(ops engine.Ops, additions []weights.LowRank) (dit.Model, error)
	}](m)
	if !ok {
		return nil, fmt.Errorf("adapt %s: models of this family take no adapters", m.Spec().Family)
	}
	return a.Adapt(ops, additions)
}
