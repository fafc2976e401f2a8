// Package models is the catalogue of diffusion models: OpenDiffusion looks at a checkpoint's names and shapes and
// answers with everything that the layers above must know, without reading a weight.
//
// Each family is a folder (flux, sd3, pixart, hunyuan) that implements the contract of models/dit;
// docs/adding-a-model.md is the recipe for another one. What they share is in layers (blocks' common pieces, position
// tables) and weights (checkpoints into tagged structs); latent, sampling, text, tokenizer and vae are the other halves
// of a pipeline.
package models

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/flux"
	"patchbay/models/hunyuan"
	"patchbay/models/pixart"
	"patchbay/models/sd3"
	"patchbay/models/weights"
)

// opener describes a file of one family.
type opener struct {
	family string
	open   func(set *weights.Set, meta map[string]string) (*family.Diffusion, error)
}

// openers is the table of supported families.
func openers() []opener {
	return []opener{
		{"flux", flux.Open},
		{"sd3", sd3.Open},
		{"pixart", pixart.Open},
		{"hunyuandit", hunyuan.Open},
		{"flux of diffusers", flux.OpenDiffusers},
	}
}

// OpenDiffusion finds out which model a checkpoint holds, alone or inside a full checkpoint, and describes it. meta is
// the file's metadata: a JSON object under "config" may give what names and shapes do not tell (heads, rotation axes,
// latent scale and shift, sampling.shift). Files of other kinds are errors that say what they look like and what is
// supported.
func OpenDiffusion(set *weights.Set, meta map[string]string) (*family.Diffusion, error) {
	family, instead, _ := weights.Looks(set)
	known := ""
	for _, o := range openers() {
		if o.family != family {
			known += ", " + o.family
			continue
		}
		d, err := o.open(set, meta)
		if err != nil {
			return nil, err
		}
		return d, d.Override(meta)
	}
	return nil, fmt.Errorf("not a supported diffusion model: the file looks like %s%s (supported: %s)", family,
		instead, known[2:])
}
