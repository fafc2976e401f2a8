// Package tiny makes small diffusion models of every family with seeded weights, for the tests of whoever runs models.
// No file is needed.
//
// Names lists them; a name of tests/golden/weights.json ("flux-a") gives the model that golden numbers were recorded
// with.
package tiny

import (
	"encoding/json"
	"fmt"

	"patchbay/engine"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/flux"
	"patchbay/models/hunyuan"
	"patchbay/models/pixart"
	"patchbay/models/sd3"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

// Names lists the tiny model of every family. They differ in heads (6, 5, 5, 7) and blocks (7, 4, 5, 8).
func Names() []string { return []string{"flux", "sd3", "pixart", "hunyuandit"} }

// Checkpoint returns the tensors and the metadata of a model, as if read from a file.
func Checkpoint(name string) (*weights.Set, map[string]string, error) {
	var config interface {
		Declare() ([]weights.Declared, error)
	}
	switch name {
	case "flux":
		config = flux.Tiny()
	case "sd3":
		config = sd3.Tiny()
	case "pixart":
		config = pixart.Tiny()
	case "hunyuandit":
		config = hunyuan.Tiny()
	default:
		set, text, err := goldenweights.Set(name)
		return set, map[string]string{"config": string(text)}, err
	}
	declared, err := config.Declare()
	if err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, nil, fmt.Errorf("tiny %s: %w", name, err)
	}
	return goldenweights.Seed("tiny-"+name, declared), map[string]string{"config": string(text)}, nil
}

// Describe returns the description of a model, which can load it.
func Describe(name string) (*family.Diffusion, error) {
	set, meta, err := Checkpoint(name)
	if err != nil {
		return nil, err
	}
	return models.OpenDiffusion(set, meta)
}

// Load loads the held part of a model with ops.
func Load(ops engine.Ops, name string, held dit.Held) (dit.Model, error) {
	d, err := Describe(name)
	if err != nil {
		return nil, err
	}
	return d.Load(ops, held)
}
