// Package tiny makes small diffusion models of every family with seeded weights, for the tests of packages that run
// models. No file is needed.
//
// Names lists them. A name of tests/golden/weights.json ("flux-a") gives the model that golden numbers were recorded
// with.
package tiny

import (
	"encoding/json"
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

// Names lists the model families. Each has a tiny model, and these differ in heads and blocks.
func Names() []string {
	var out []string
	for _, f := range models.Families() {
		out = append(out, f.Name)
	}
	return out
}

// Networks returns the models of every family, in the order of the table: those that golden numbers were recorded with,
// or the tiny one of a family that has none.
func Networks() (out [][]string, err error) {
	golden, err := goldenweights.Models()
	if err != nil {
		return nil, err
	}
	families := Names()
	out = make([][]string, len(families))
	for _, name := range golden {
		d, err := Describe(name)
		if err != nil {
			return nil, err
		}
		at := slices.Index(families, d.Spec.Family)
		out[at] = append(out[at], name)
	}
	for i := range out {
		if out[i] == nil {
			out[i] = []string{families[i]}
		}
	}
	return out, nil
}

// Checkpoint returns the tensors and the metadata of a model, as if they were read from a file.
func Checkpoint(name string) (*weights.Set, map[string]string, error) {
	f, ok := models.Named(name)
	if !ok {
		set, text, err := goldenweights.Set(name)
		return set, map[string]string{"config": string(text)}, err
	}
	d, err := f.Tiny.Describe(nil)
	if err != nil {
		return nil, nil, err
	}
	declared, err := d.Declare()
	if err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(f.Tiny)
	if err != nil {
		return nil, nil, fmt.Errorf("tiny %s: %w", name, err)
	}
	return goldenweights.Seed("tiny-"+name, declared), map[string]string{"config": string(text)}, nil
}

// Describe returns the description of a model, whose Load method loads it.
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
