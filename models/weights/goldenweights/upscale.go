package goldenweights

import (
	"fmt"

	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// Upscaler returns the tensors of an upscale model of tests/golden/pictures.json.
func Upscaler(name string) (*weights.Set, error) {
	var all golden.Pictures
	if err := golden.JSON("pictures.json", &all); err != nil {
		return nil, err
	}
	if len(all.Models[name]) == 0 {
		return nil, fmt.Errorf("pictures.json has no model %s", name)
	}
	tensors := map[string]weights.Stored{}
	for _, w := range all.Models[name] {
		shape, v := w.Fill(name)
		tensors[w.Name()] = weights.Floats(v, shape...)
	}
	return weights.FromMap(tensors), nil
}
