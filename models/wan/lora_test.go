package wan

import (
	"encoding/json"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/goldenrun"
	"patchbay/models/lora"
	"patchbay/models/lora/loratest"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	w, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one, e := loratest.One, w.Hidden
	loratest.Check(t, Family(),
		one("diffusion_model.blocks.1.self_attn.q", e, e, "blocks.1.self_attn.q", 0),
		one("lora_unet_blocks_0_cross_attn_v_img", e, e, "blocks.0.cross_attn.v_img", 0),
		one("lora_unet__blocks_2_ffn_0", w.MLPHidden, e, "blocks.2.ffn.0", 0),
		one("transformer.blocks.3.attn2.to_out.0", e, e, "blocks.3.cross_attn.o", 0),
		one("blocks.0.ffn.net.2", e, w.MLPHidden, "blocks.0.ffn.2", 0),
	)
}

// TestAdaptersMatchGolden compares a forward pass with what ComfyUI makes of files as trainers write them: with pairs
// alone, and with what 4-step distillations add to biases and norms.
func TestAdaptersMatchGolden(t *testing.T) {
	var cases map[string]struct {
		Model    string
		As       string `json:"inputs_as"`
		Strength float32
		Weights  []struct {
			Keys     []string
			Up, Down []json.RawMessage
			Alpha    float32
			Key      string
			Value    []json.RawMessage
		}
	}
	if err := golden.JSON("wan/lora.json", &cases); err != nil {
		t.Fatal(err)
	}
	f, err := golden.Open("wan/lora.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	stored := func(spec []json.RawMessage) weights.Stored {
		var name string
		var shape []int
		var scale float64
		for i, v := range []any{&name, &shape, &scale} {
			if err := json.Unmarshal(spec[i], v); err != nil {
				t.Fatal(err)
			}
		}
		return weights.Floats(golden.Fill(name, weights.Stored{Shape: shape}.Len(), scale, 0), shape...)
	}
	for name, c := range cases {
		file := map[string]weights.Stored{}
		for _, w := range c.Weights {
			if w.Key != "" {
				file[w.Key] = stored(w.Value)
				continue
			}
			file[w.Keys[0]], file[w.Keys[1]] = stored(w.Up), stored(w.Down)
			file[w.Keys[2]] = weights.Floats([]float32{w.Alpha}, 1)
		}
		adapter := weights.FromMap(file)
		set, config, err := goldenweights.Set(c.Model)
		if err != nil {
			t.Fatal(err)
		}
		meta := map[string]string{"config": string(config)}
		plain, err := family.Open([]family.Family{Family()}, set, meta)
		if err != nil {
			t.Fatal(err)
		}
		declared, err := plain.Declare()
		if err != nil {
			t.Fatal(err)
		}
		m, err := lora.Match(adapter, lora.Diffusion("wan", Family().Names, declared))
		if err != nil {
			t.Fatal(err)
		}
		for _, unused := range m.Unused {
			if !strings.HasSuffix(unused, ".diff_m") { // as in ComfyUI
				t.Errorf("%s: %s is not used", name, unused)
			}
		}
		additions, err := lora.Gather(adapter, m.Additions, c.Strength)
		if err != nil {
			t.Fatal(err)
		}
		changes, err := lora.GatherChanges(adapter, m.Changes, c.Strength)
		if err != nil {
			t.Fatal(err)
		}
		d, err := family.Open([]family.Family{Family()}, set, meta, changes...)
		if err != nil {
			t.Fatal(err)
		}
		ops := goldenrun.NewOps()
		base, err := d.Load(ops, dit.Held{})
		if err != nil {
			t.Fatal(err)
		}
		adapted, err := base.(interface {
			Adapt(ops engine.Ops, additions []weights.LowRank) (dit.Model, error)
		}).Adapt(ops, additions)
		if err != nil {
			t.Fatal(err)
		}
		inputs, err := goldenweights.Cases(c.Model)
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range inputs {
			if in.Name != c.As {
				continue
			}
			env, err := goldenrun.NewEnv(ops, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := goldenrun.Whole(env, adapted, in, nil)
			if err != nil {
				t.Fatal(err)
			}
			e, ok := f.Entry(name)
			if !ok {
				t.Fatalf("%s is not recorded", name)
			}
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			worst, err := goldenrun.Compare(got, want, goldenrun.Rel)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			t.Logf("%s: %.2g", name, worst)
		}
		adapted.Close()
		base.Close()
	}
}
