// Package goldenweights builds checkpoints for tests from the value formula of tests/golden, so that no file is needed.
//
// Set returns the tiny models that golden numbers were recorded with, and Cases and OpenResults (cases.go) the
// evaluations recorded with them. Seed fills any list of declared tensors by the same rule.
package goldenweights

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"

	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// model is one entry of weights.json: [key, shape, kind, scale, offset] per tensor, or a list of its elements in place
// of the scale.
type model struct {
	Class   string              `json:"class"`
	Config  json.RawMessage     `json:"config"`
	Tensors [][]json.RawMessage `json:"tensors"`
	Markers []string            `json:"marker_tensors_of_the_file"` // without elements
}

// made caches the results of Set by name, because filling a set takes longer than many tests.
var made sync.Map

type result struct {
	set    *weights.Set
	config json.RawMessage
	err    error
}

// Set returns the tensors of the golden model of that name ("flux-a", "clip-l-tiny" ...) under their original names,
// and the recorded config as JSON. All callers of a process share both and must not change them.
func Set(name string) (*weights.Set, json.RawMessage, error) {
	once, _ := made.LoadOrStore(name, sync.OnceValue(func() (r result) {
		r.set, r.config, r.err = makeSet(name)
		return r
	}))
	r := once.(func() result)()
	return r.set, r.config, r.err
}

func makeSet(name string) (*weights.Set, json.RawMessage, error) {
	files := []string{
		"weights.json", "weights_text_vae.json", "modern/weights.json", "modern/weights_text.json",
		"modern/weights_vae.json", "modern/weights_control.json", "modern/weights_control_qwen.json",
		"modern33/weights_patches.json", "modern33/weights_hints.json", "qwen21/weights.json",
		"qwen21/weights_vae.json", "qwen21/weights_text.json", "flux3/weights.json", "flux3/weights_text.json",
		"sdxl/weights.json", "sdxl/weights_text.json", "refiner/weights.json",
		"wan/weights.json", "wan/weights_text.json", "wan/weights_vae.json", "wan/weights_clip_vision.json",
		"h3/weights.json", "h3/weights_text.json", "h3/weights_vae.json", "ltx/weights.json", "ltx/weights_text.json",
		"ltx/weights_gemma4.json", "ltx/weights_vae.json", "ltx/weights_audio.json", "ltx/weights_upscale.json",
		"qwen35/weights_text.json",
	}
	for _, file := range files {
		var models map[string]model
		if err := golden.JSON(file, &models); err != nil {
			return nil, nil, err
		}
		m, ok := models[name]
		if !ok {
			continue
		}
		set := map[string]weights.Stored{}
		for _, t := range m.Tensors {
			if err := add(set, name, t); err != nil {
				return nil, nil, fmt.Errorf("golden model %s: %w", name, err)
			}
		}
		for _, name := range m.Markers {
			set[name] = weights.Floats(nil, 0)
		}
		return weights.FromMap(set), m.Config, nil
	}
	return nil, nil, fmt.Errorf("golden model %q is in none of %v", name, files)
}

func add(set map[string]weights.Stored, model string, t []json.RawMessage) error {
	var (
		key           string
		shape         []int
		scale, offset float64
	)
	var list []float32
	for i, v := range []any{&key, &shape, nil, &scale, &offset} {
		if i == 3 && t[i][0] == '[' {
			v = &list
		}
		if v == nil {
			continue
		}
		if err := json.Unmarshal(t[i], v); err != nil {
			return err
		}
	}
	if list != nil {
		set[key] = weights.Floats(list, shape...)
	} else {
		set[key] = stored(model+"/"+key, shape, scale, offset)
	}
	return nil
}

// Seed fills declared tensors by the rule of tests/golden/README.md section 1: small biases, norms around 1, matrices
// of unit gain. Values depend only on the model name and the tensor names.
func Seed(name string, declared []weights.Declared) *weights.Set {
	set := map[string]weights.Stored{}
	for _, d := range declared {
		scale, offset := rule(d)
		set[d.Name] = stored(name+"/"+d.Name, d.Shape, scale, offset)
	}
	return weights.FromMap(set)
}

func rule(d weights.Declared) (scale, offset float64) {
	if strings.HasSuffix(d.Name, "bias") && len(d.Shape) == 1 {
		return 0.4, 0
	}
	for _, part := range []string{
		"embedding", "pos_embed", "scale_shift_table", "relative_attention_bias",
		"style_embedder", "shared.",
	} {
		if strings.Contains(d.Name, part) {
			return 1, 0
		}
	}
	switch {
	case strings.HasSuffix(d.Name, "mod.lin"): // a table
		return 1, 0
	case d.Add > 0: // a norm's weight minus 1
		return 0.4, 0
	case len(d.Shape) <= 1:
		return 0.2, 1
	}
	fanIn := d.Params() / int64(d.Shape[0])
	return 2 * math.Sqrt(3/float64(fanIn)), 0
}

func stored(name string, shape []int, scale, offset float64) weights.Stored {
	n := weights.Stored{Shape: shape}.Len()
	return weights.Floats(golden.Fill(name, n, scale, offset), shape...)
}
