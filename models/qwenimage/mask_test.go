package qwenimage

import (
	"encoding/json"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestMaskedTextIsLeftOut checks that a text without the tokens at its end gives what ComfyUI 0.33.0 gives with a mask
// over them.
func TestMaskedTextIsLeftOut(t *testing.T) {
	var all map[string]json.RawMessage
	if err := golden.JSON("modern33/qwen_mask.json", &all); err != nil {
		t.Fatal(err)
	}
	f, err := golden.Open("modern33/qwen_mask.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	set, config, err := goldenweights.Set("qwen-a")
	if err != nil {
		t.Fatal(err)
	}
	env, err := goldenrun.NewEnv(goldenrun.NewOps(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := goldens().Open(env.Ops, set, map[string]string{"config": string(config)}, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for name, text := range all {
		var mask struct {
			Ones []int `json:"mask_ones_in_front"`
		}
		c, err := goldenweights.CaseOf(name, text)
		if err != nil || json.Unmarshal(text, &mask) != nil || len(mask.Ones) != c.N() {
			t.Fatalf("%s: %v, mask %v", name, err, mask)
		}
		recorded, _ := f.Entry(name)
		want, err := recorded.F32()
		if err != nil {
			t.Fatal(err)
		}
		for i, size := 0, len(want)/c.N(); i < c.N(); i++ {
			c.Rows = mask.Ones[i] // for all items: a batch has texts of one length
			got, err := goldenrun.Whole(env, m, c, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := goldenrun.Compare(got[i*size:(i+1)*size], want[i*size:(i+1)*size], 2e-5); err != nil {
				t.Errorf("%s: item %d: %v", name, i, err)
			}
		}
	}
}
