// Package models is the catalogue of diffusion models: the table of families, and what the layers above ask of all of
// them. Nothing reads a weight before a description's Load is called.
//
// Each family is a folder whose Family says everything about it; docs/adding-a-model.md is the recipe for another one.
// What they share is in family (the descriptor, loading), layers (blocks' common pieces, position tables) and weights
// (checkpoints into tagged structs); latent, sampling, text, tokenizer and vae are the other halves of a pipeline.
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
	"patchbay/models/hunyuan"
	"patchbay/models/krea2"
	"patchbay/models/pixart"
	"patchbay/models/qwenimage"
	"patchbay/models/sd3"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/zimage"
)

// Families is the table of supported families, a row each.
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
	}
}

// OpenDiffusion finds out which model a checkpoint holds, alone or inside a full checkpoint, and describes it. meta is
// the file's metadata: a JSON object under "config" may give what names and shapes do not tell (heads, rotation axes,
// latent scale and shift, sampling.shift). Files of other kinds are errors that say what they look like and what is
// supported. changes are what adapters make of the stored tensors first.
func OpenDiffusion(set *weights.Set, meta map[string]string, changes ...weights.Change) (*family.Diffusion, error) {
	return family.Open(Families(), set, meta, changes...)
}

// OpenControl describes the control net that a checkpoint holds; meta is read as that of a model of its family. Files
// of other kinds, and nets that are not supported, are errors that say what they look like.
func OpenControl(set *weights.Set, meta map[string]string) (*control.Net, error) {
	return control.Open(Families(), set, meta)
}

// ControlBeside gives a control net what it lacks and the model beside which it runs has.
func ControlBeside(set, model *weights.Set) (*weights.Set, error) {
	return control.Beside(Families(), set, model)
}

// OpenPatch describes the model patch that a checkpoint holds; files of other kinds are errors that say what they look
// like.
func OpenPatch(set *weights.Set) (*control.Net, error) { return control.OpenPatch(Families(), set) }

// GuessKind tells what a file seems to be, for the error of whoever wanted another kind.
func GuessKind(set *weights.Set) string { return family.GuessKind(Families(), set) }

// Named returns the family of that name (dit.Spec.Family).
func Named(name string) (family.Family, bool) {
	for _, f := range Families() {
		if f.Name == name {
			return f, true
		}
	}
	return family.Family{}, false
}

// TextTypes are the types that loaders of text encoders take (ComfyUI's input "type"), with what each makes of prompts:
// those of all families, and CLIP-L alone under the type that ComfyUI's loader offers first.
func TextTypes() map[string]family.Text {
	out := map[string]family.Text{"stable_diffusion": {
		Encoders: []family.Encoder{
			{Kind: "clip_l", Layout: tokenizer.CLIPL(), Form: text.Form{Norm: true, Project: true}},
		},
	}}
	for _, f := range Families() {
		for _, t := range f.Text.Types {
			out[t] = f.Text
		}
	}
	return out
}

// Adapt returns a model that computes with the weights of m plus additions (LoRA) and shares m's memory: nothing is
// merged, nothing of m is packed again. m is a model that Diffusion.Load gave, whole or a part; m must stay open as
// long as the result is used, and closing the result frees the additions alone. Errors: names and shapes that do not
// fit, no memory.
func Adapt(ops engine.Ops, m dit.Model, additions []weights.LowRank) (dit.Model, error) {
	a, ok := m.(interface {
		Adapt(ops engine.Ops, additions []weights.LowRank) (dit.Model, error)
	})
	if !ok {
		return nil, fmt.Errorf("adapt %s: models of this family take no adapters", m.Spec().Family)
	}
	return a.Adapt(ops, additions)
}
