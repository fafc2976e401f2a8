package models_test

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// kleinFile is quantisedFile of a FLUX.2-klein.
func kleinFile(t *testing.T, name string) (*weights.Set, map[string]string) {
	t.Helper()
	return quantisedFile(t, "modern33/weights_int8.json", name)
}

// quantisedFile writes a recorded quantized model to a file, opens it and returns its tensors and metadata.
func quantisedFile(t *testing.T, recorded, name string) (*weights.Set, map[string]string) {
	t.Helper()
	var all map[string]struct {
		Config    json.RawMessage            `json:"config"`
		Quantised string                     `json:"quantised"`
		Layers    map[string]json.RawMessage `json:"layers"`
		Tensors   [][]any                    `json:"tensors"`
	}
	if err := golden.JSON(recorded, &all); err != nil {
		t.Fatal(err)
	}
	m := all[name]
	var entries []safetensors.Tensor
	for _, info := range m.Tensors {
		e := safetensors.Tensor{Name: info[0].(string), FileType: info[2].(string), Shape: []int{}}
		n := 1
		for _, d := range info[1].([]any) {
			e.Shape = append(e.Shape, int(d.(float64)))
			n *= int(d.(float64))
		}
		kind := info[3].(string)
		scale, _ := info[4].(float64)
		offset := 0.0
		if len(info) > 5 {
			offset, _ = info[5].(float64)
		}
		if kind == "int8" {
			scale = 1
		}
		v := golden.Fill(name+"/"+e.Name, n, scale, offset)
		if list, ok := info[4].([]any); ok {
			for i := range v {
				v[i] = float32(list[i].(float64))
			}
		}
		d := map[string]engine.DType{
			"F32": engine.F32, "BF16": engine.BF16, "F8_E4M3": engine.F8E4M3, "I8": engine.I8,
		}[e.FileType]
		data := make([]byte, n*d.Size())
		switch kind {
		case "int8":
			for i := range v {
				data[i] = byte(int8(math.Floor(float64(v[i]) * 256)))
			}
		case "constant":
			for i := range v {
				v[i] = float32(scale)
			}
			fallthrough
		default:
			engine.Narrow(data, v, d)
		}
		e.Data = datafile.Of(data)
		entries = append(entries, e)
	}
	meta := map[string]string{"config": string(m.Config)}
	if strings.HasPrefix(m.Quantised, "file metadata") {
		text, err := json.Marshal(map[string]any{"format_version": "1.0", "layers": m.Layers})
		if err != nil {
			t.Fatal(err)
		}
		meta["_quantization_metadata"] = string(text)
	} else {
		for layer, text := range m.Layers {
			entries = append(entries, safetensors.Tensor{
				Name: layer + ".comfy_quant", FileType: "U8", Shape: []int{len(text)}, Data: datafile.Of(text),
			})
		}
	}
	var out bytes.Buffer
	if err := safetensors.Write(&out, meta, entries); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.OpenBytes(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return weights.FromFile(f), meta
}

// rms returns the root mean square of the difference relative to that of want.
func rms(got, want []float32) float64 {
	sum, all := 0.0, 0.0
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		sum, all = sum+d*d, all+float64(w)*float64(w)
	}
	return math.Sqrt(sum / all)
}

// TestQuantisedKleinMatchesComfyUI compares FLUX.2-klein from files of int8, rotated int8 and mixed layers with ComfyUI
// 0.33.0: on its default path within the error that int8 activations amplify, and with dequantized weights within a
// tight bound. The results of int8 weights in parts and in tensor-parallel slices stay within the same bound.
func TestQuantisedKleinMatchesComfyUI(t *testing.T) {
	if testing.Short() {
		t.Skip("long: a whole model; TestPlansOfInt8Weights samples with such weights")
	}
	results, err := golden.Open("modern33/int8.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	var cases map[string]struct {
		goldenrun.Case
		Noise struct {
			Most float64 `json:"max_rel"`
		} `json:"effect_of_adding_1e-6_noise_to_x"`
	}
	if err := golden.JSON("modern33/int8.json", &cases); err != nil {
		t.Fatal(err)
	}
	run := func(ops engine.Ops, set *weights.Set, meta map[string]string, c goldenrun.Case) []float32 {
		t.Helper()
		d, err := models.OpenDiffusion(set, meta)
		if err != nil {
			t.Fatal(err)
		}
		m, err := d.Load(ops, dit.Held{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		env, err := goldenrun.NewEnv(ops, nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := goldenrun.Whole(env, m, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	recorded := func(key string) []float32 {
		e, ok := results.Entry(key)
		if !ok {
			t.Fatalf("no recorded %s", key)
		}
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, recordedCase := range cases {
		c := recordedCase.Case
		c.Name = name
		model, _, _ := strings.Cut(name, "/")
		set, meta := kleinFile(t, model)
		check := func(what string, got []float32) {
			t.Helper()
			want := recorded(name)
			worst, err := goldenrun.Compare(got, want, 2e-2)
			if err != nil {
				t.Errorf("%s %s: %v", name, what, err)
			}
			if r := rms(got, want); !(r <= 1e-2) {
				t.Errorf("%s %s: rms %.3g, bound 1e-2", name, what, r)
			}
			t.Logf("%s %s: error %.2g, rms %.2g", name, what, worst, rms(got, want))
		}
		check("on ref", run(ref.New(), set, meta, c))
		goldenrun.EachOps(t, func(_ *testing.T, ops engine.Ops) { check(ops.Name(), run(ops, set, meta, c)) })
		check("deferred", run(deferred.New(goldenrun.NewOps()), set, meta, c))
		// torch's dispatcher does not fold the dimensions of slices of an attention result, so ComfyUI dequantizes the
		// weights that multiply them. With the same layers dequantized, the result is the recorded one.
		mixed, wide := map[string]weights.Stored{}, set.Dequantized(engine.F32)
		for _, n := range set.Names() {
			if mixed[n], _ = set.Get(n); strings.HasSuffix(n, "_attn.proj.weight") {
				mixed[n], _ = wide.Get(n)
			}
		}
		as := run(goldenrun.NewOps(), weights.FromMap(mixed), meta, c)
		bound := 2e-5
		if recordedCase.Noise.Most > bound { // some values lie at rounding boundaries
			bound = 5e-3
		}
		worst, err := goldenrun.Compare(as, recorded(name), bound)
		if err != nil {
			t.Errorf("%s as dispatched: %v", name, err)
		}
		t.Logf("%s as dispatched: error %.2g, rms %.2g", name, worst, rms(as, recorded(name)))
		exact := run(goldenrun.NewOps(), set.Dequantized(engine.F32), meta, c)
		if _, err := goldenrun.Compare(exact, recorded(name+"#with_dequantised_weights"), 2e-5); err != nil {
			t.Errorf("%s with dequantised weights: %v", name, err)
		}
	}
}

// TestQuantisedQwenImage21 compares Qwen-Image-2.1 from a file of rotated int8 layers with the recorded results of its
// dequantized weights, also read with the gate and the other half of a layer apart, as in diffusers' files. Products
// with int8 activations, of which ComfyUI's bits are not recorded, stay near.
func TestQuantisedQwenImage21(t *testing.T) {
	results, err := golden.Open("qwen21/int8.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	var cases map[string]goldenrun.Case
	if err := golden.JSON("qwen21/int8.json", &cases); err != nil {
		t.Fatal(err)
	}
	set, meta := quantisedFile(t, "qwen21/weights_int8.json", "q21-r8")
	apart := map[string]weights.Stored{}
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		before, after, ok := strings.Cut(name, "gate_up.")
		switch {
		case ok && after != "comfy_quant":
			if apart[before+"gate_layer."+after], err = s.Rows(0, s.Shape[0]/2); err == nil {
				apart[before+"proj."+after], err = s.Rows(s.Shape[0]/2, s.Shape[0]/2)
			}
			if err != nil {
				t.Fatal(err)
			}
		case ok:
			apart[before+"gate_layer."+after], apart[before+"proj."+after] = s, s
		default:
			apart[name] = s
		}
	}
	for what, set := range map[string]*weights.Set{"fused": set, "apart": weights.FromMap(apart)} {
		for name, c := range cases {
			c.Name = name
			e, ok := results.Entry(name + "#with_dequantised_weights")
			if !ok {
				t.Fatalf("no recorded %s", name)
			}
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			for _, wide := range []bool{true, false} {
				from, bound := set, 5e-2
				if wide {
					from, bound = set.Dequantized(engine.F32), 2e-5
				}
				d, err := models.OpenDiffusion(from, meta)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				m, err := d.Load(goldenrun.NewOps(), dit.Held{})
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				env, err := goldenrun.NewEnv(goldenrun.NewOps(), nil)
				if err != nil {
					t.Fatal(err)
				}
				got, err := goldenrun.Whole(env, m, c, nil)
				if err != nil {
					t.Fatal(err)
				}
				worst, err := goldenrun.Compare(got, want, bound)
				if err != nil {
					t.Errorf("%s %s, dequantized %v: %v", name, what, wide, err)
				}
				if !wide && worst == 0 {
					t.Errorf("%s %s: products of int8 have the bits of wide ones", name, what)
				}
				m.Close()
			}
		}
	}
}

// TestQuantisedH3 compares MiniMax-H3 from a file of rotated int8 layers with ComfyUI 0.33.0: on its default path, and
// with dequantized weights.
func TestQuantisedH3(t *testing.T) {
	results, err := golden.Open("h3/int8.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	var cases map[string]json.RawMessage
	if err := golden.JSON("h3/int8.json", &cases); err != nil {
		t.Fatal(err)
	}
	set, meta := quantisedFile(t, "h3/weights_int8.json", "h3-i8-a")
	for name, text := range cases {
		c, err := goldenweights.CaseOf(name, text)
		if err != nil {
			t.Fatal(err)
		}
		for suffix, bound := range map[string]float64{"": 2e-2, "#with_dequantised_weights": 2e-5} {
			from := set
			if suffix != "" {
				from = set.Dequantized(engine.F32)
			}
			d, err := models.OpenDiffusion(from, meta)
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Unused) > 0 {
				t.Errorf("tensors that are not used: %v", d.Unused)
			}
			m, err := d.Load(goldenrun.NewOps(), dit.Held{})
			if err != nil {
				t.Fatal(err)
			}
			env, err := goldenrun.NewEnv(goldenrun.NewOps(), nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := goldenrun.Whole(env, m, c, nil)
			if err != nil {
				t.Fatal(err)
			}
			e, ok := results.Entry(name + suffix)
			if !ok {
				t.Fatalf("%s%s is not recorded", name, suffix)
			}
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			worst, err := goldenrun.Compare(got, want, bound)
			if err != nil {
				t.Errorf("%s%s: %v", name, suffix, err)
			}
			t.Logf("%s%s: %.2g of %.2g", name, suffix, worst, bound)
			m.Close()
		}
	}
}

// TestQuantisedQwen35Writes compares a Qwen3.5 from a file of asym_w4a8_int8 with ComfyUI 0.33.0 on the weights that it
// dequantizes: with the same weights the states are near, and with those that stay quantized, which products round to
// bf16, those of ComfyUI with weights rounded likewise. Both write ComfyUI's tokens.
func TestQuantisedQwen35Writes(t *testing.T) {
	results, err := golden.Open("qwen35/w4a8.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	var cases map[string]struct {
		IDs  []int
		Runs struct {
			Greedy struct {
				Most int `json:"max_length"`
				IDs  []int
			}
		}
	}
	if err := golden.JSON("qwen35/w4a8.json", &cases); err != nil || len(cases) != 3 {
		t.Fatal(len(cases), err)
	}
	set, _ := quantisedFile(t, "qwen35/weights_w4a8.json", "qwen35-w4a8")
	write := func(t *testing.T, ops engine.Ops, set *weights.Set, rounded string, bound float64) {
		m, err := text.OpenPart(ops, "qwen35", set, nil, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if len(m.Unused()) > 0 {
			t.Errorf("unknown tensors %v", m.Unused())
		}
		head, err := text.OpenHead(ops, set)
		if err != nil {
			t.Fatal(err)
		}
		defer head.Close()
		for key, c := range cases {
			var chunk []tokenizer.Token
			for _, id := range c.IDs {
				chunk = append(chunk, tokenizer.Token{ID: id, Weight: 1})
			}
			e, ok := results.Entry(key + "#states" + rounded)
			if !ok {
				t.Fatalf("no recorded %s", key)
			}
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.Encode(text.Env{Ops: ops}, [][]tokenizer.Token{chunk}, text.Form{})
			if err != nil {
				t.Fatal(err)
			}
			if worst, err := goldenrun.Compare(got.Context.Data, want, bound); err != nil {
				t.Errorf("%s%s on %s: %v", key, rounded, ops.Name(), err)
			} else {
				t.Logf("%s%s on %s: error %.2g", key, rounded, ops.Name(), worst)
			}
			run := c.Runs.Greedy
			ids, err := m.(*text.LM).Generate(text.Env{Ops: ops}, head, chunk, text.Form{},
				text.Sampling{MaxTokens: run.Most, Greedy: true})
			if err != nil || !slices.Equal(ids, run.IDs) {
				t.Errorf("%s%s on %s: it writes %v, %v, want %v", key, rounded, ops.Name(), ids, err, run.IDs)
			}
		}
	}
	write(t, goldenrun.NewOps(), set.Dequantized(engine.F32), "", 2e-5)
	// Some weights lie where the last bit of their float32 decides how they are rounded; rounding itself changes 1e-2.
	goldenrun.EachOps(t, func(t *testing.T, ops engine.Ops) { write(t, ops, set, "_rounded", 1e-3) })
}
