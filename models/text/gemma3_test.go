package text_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/ltx"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// gemma3Words returns the small vocabulary that prompts of a Gemma 3 were recorded with.
func gemma3Words(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	vocabulary, err := os.ReadFile(golden.Path("ltx/spiece_synthetic.model"))
	if err != nil {
		t.Fatal(err)
	}
	words, err := tokenizer.FromSentencePiece(vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	return words
}

// TestGemma3Tokens compares the tokens of prompts with ComfyUI's, with its pads left out: a start token, no end token,
// parentheses and embedding:NAME as text, and a token that is lost where a turn's end is written.
func TestGemma3Tokens(t *testing.T) {
	words := gemma3Words(t)
	reader := ltx.Family().Text
	as, _ := reader.Encoder("gemma3_12b")
	var cases map[string]struct {
		Text string
		IDs  []int
	}
	if err := golden.JSON("ltx/tokens.json", &cases); err != nil {
		t.Fatal(err)
	}
	for key, c := range cases {
		p, err := as.Layout.Prompt(words, c.Text, nil)
		if err != nil {
			t.Fatal(err)
		}
		var ids []int
		for _, token := range slices.Concat(p.Chunks...) {
			ids = append(ids, token.ID)
		}
		if len(p.Chunks) != 1 || !slices.Equal(ids, c.IDs) {
			t.Errorf("%s: tokens %v, want %v", key, ids, c.IDs)
		}
	}
}

// gemma3Case is one entry of ltx/text.json.
type gemma3Case struct {
	Text  string
	Cond  []int
	First int `json:"first_row"`
}

// narrowed returns a set with every tensor rounded to a dtype.
func narrowed(set *weights.Set, d engine.DType) *weights.Set {
	all := map[string]weights.Stored{}
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		v := s.F32()
		data := make([]byte, len(v)*d.Size())
		engine.Narrow(data, v, d)
		all[name] = weights.Stored{DType: d, Shape: s.Shape, Data: data}
	}
	return weights.FromMap(all)
}

// TestGemma3 compares a small Gemma 3 and its projection with ComfyUI's: all states, from the embeddings to the last
// with its norm, in prompts that are padded in front there, and what one projection and two make of them. A prompt of
// more than 1024 tokens hides keys that are too far away from most layers. Weights of bf16 were recorded with the
// projection in bf16, which rounds.
func TestGemma3(t *testing.T) {
	f, err := golden.Open("ltx/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	words := gemma3Words(t)
	var cases map[string]gemma3Case
	if err := golden.JSON("ltx/text.json", &cases); err != nil {
		t.Fatal(err)
	}
	reader := ltx.Family().Text
	as, _ := reader.Encoder("gemma3_12b")
	_, best := fastest(nativeBackends(t))
	for name, ops := range backends(t) {
		for key, c := range cases {
			model, bound := strings.Split(key, "/")[0], tolerance
			long := strings.HasSuffix(key, "/long")
			if long && (name != best || name == "ref" || testing.Short()) {
				continue // 1,063 tokens are slow; TestNearby has few
			}
			if model == "bf16" {
				model, bound = strings.Split(key, "/")[1], 2e-2
			}
			set, _, err := goldenweights.Set(model)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(key, "bf16/") {
				set = narrowed(set, engine.BF16)
			}
			var kinds []string
			for _, p := range text.Find(set) {
				kinds = append(kinds, p.Kind)
			}
			if slices.Sort(kinds); !slices.Equal(kinds, []string{"gemma3_12b", "projection"}) {
				t.Fatalf("%s holds %v", model, kinds)
			}
			m, err := text.OpenPart(ops, "gemma3_12b", set, nil, 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			to, err := text.OpenPart(ops, "projection", set, nil, 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			if unused := append(m.Unused(), to.Unused()...); len(unused) > 0 {
				t.Errorf("%s: %v are not used", model, unused)
			}
			p, err := as.Layout.Prompt(words, c.Text, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.Encode(env(t, ops), p.Chunks, as.Form)
			if err != nil {
				t.Fatal(err)
			}
			if _, recorded := f.Entry(key + "#states"); recorded {
				want := values(t, f, key+"#states")
				n := len(want) / got.States
				for s := range got.States {
					compare(t, name+" "+key+"#states", stateOf(got, s), want[s*n:(s+1)*n], tolerance)
				}
			}
			out, err := to.Encode(env(t, ops), [][]tokenizer.Token{got.Tokens()}, text.Form{States: got.States})
			if err != nil {
				t.Fatal(err)
			}
			if out.Context.Rows != c.Cond[1] || out.Context.Cols != c.Cond[2] {
				t.Fatalf("%s: %d x %d, want %v", key, out.Context.Rows, out.Context.Cols, c.Cond)
			}
			compare(t, name+" "+key, out.Context.Data[c.First*c.Cond[2]:], values(t, f, key+"#cond"), bound)
			m.Close()
			to.Close()
		}
	}
}

// stateOf returns state s of all rows of an encoding.
func stateOf(e text.Encoding, s int) (out []float32) {
	width := e.Context.Cols / e.States
	for r := range e.Context.Rows {
		out = append(out, e.Context.Data[r*e.Context.Cols+s*width:][:width]...)
	}
	return out
}

// narrowLayers returns a set whose matrices in layers have random codes of a format of ComfyUI's files, and the same
// with the numbers that they stand for.
func narrowLayers(t *testing.T, set *weights.Set, format string) (narrow, wide *weights.Set) {
	t.Helper()
	r, all := rand.New(rand.NewPCG(3, 4)), map[string]weights.Stored{}
	codes := func(n, below int) []byte {
		out := make([]byte, n)
		for i := range out {
			out[i] = byte(r.IntN(below))
		}
		return out
	}
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		all[name] = s
		module, ok := strings.CutSuffix(name, ".weight")
		if !ok || len(s.Shape) != 2 || !strings.HasPrefix(name, "model.layers.") {
			continue
		}
		n, k := s.Shape[0], s.Shape[1]
		mark := []byte(`{"format": "` + format + `"}`)
		all[module+".comfy_quant"] = weights.Stored{DType: engine.U8, Shape: []int{len(mark)}, Data: mark}
		switch format {
		case "float8_e4m3fn":
			all[name] = weights.Stored{DType: engine.F8E4M3, Shape: []int{n, k}, Data: codes(n*k, 0x50)}
			all[module+".weight_scale"] = weights.Floats([]float32{0.02})
		case "nvfp4":
			scales := (n + 127) / 128 * 128 * ((k/16 + 3) / 4 * 4)
			all[name] = weights.Stored{DType: engine.U8, Shape: []int{n, k / 2}, Data: codes(n*k/2, 256)}
			all[module+".weight_scale"] = weights.Stored{DType: engine.F8E4M3, Shape: []int{scales}, Data: codes(scales, 0x40)}
			all[module+".weight_scale_2"] = weights.Floats([]float32{0.05})
		}
	}
	narrow, numbers := weights.FromMap(all), map[string]weights.Stored{}
	for _, name := range narrow.Names() {
		s, _ := narrow.Get(name)
		numbers[name] = weights.Floats(s.F32(), s.Shape...)
	}
	return narrow, weights.FromMap(numbers)
}

// TestGemma3Quantised checks that a Gemma 3 in the forms that LTX-2's templates name, fp8 with scales and nvfp4, gives
// the states of the numbers that its codes stand for.
func TestGemma3Quantised(t *testing.T) {
	set, _, err := goldenweights.Set("gemma3-a")
	if err != nil {
		t.Fatal(err)
	}
	reader := ltx.Family().Text
	as, _ := reader.Encoder("gemma3_12b")
	for _, format := range []string{"float8_e4m3fn", "nvfp4"} {
		narrow, wide := narrowLayers(t, set, format)
		if narrow.Bytes() > wide.Bytes()*3/4 {
			t.Errorf("%s: %d bytes of %d", format, narrow.Bytes(), wide.Bytes())
		}
		fast, name := fastest(nativeBackends(t))
		run := func(set *weights.Set) []float32 {
			m, err := text.OpenPart(fast, "gemma3_12b", set, nil, 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			got, err := m.Encode(env(t, fast), tokens([]float32{2, 90, 33, 41, 1, 300}), as.Form)
			if err != nil {
				t.Fatal(err)
			}
			return got.Context.Data
		}
		compare(t, name+" "+format, run(narrow), run(wide), 2e-6)
	}
}

// TestProjectionOfAnotherModel checks the error for states that a projection is not for.
func TestProjectionOfAnotherModel(t *testing.T) {
	set, _, err := goldenweights.Set("gemma3-a")
	if err != nil {
		t.Fatal(err)
	}
	to, err := text.OpenPart(ref.New(), "projection", set, nil, 0, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	of := text.Encoding{Context: dit.Array{Rows: 1, Cols: 7 * 48, Data: make([]float32, 7*48)}, States: 7}
	_, err = to.Encode(env(t, ref.New()), [][]tokenizer.Token{of.Tokens()}, text.Form{States: of.States})
	if err == nil || !strings.Contains(err.Error(), "another language model") {
		t.Errorf("got error %v", err)
	}
}

// TestFindGemma3 checks which language models with these norms are Gemma 3 12B, not that of 4B, and which are a Gemma
// 4, with inputs of every layer or without.
func TestFindGemma3(t *testing.T) {
	for want, with := range map[string][]string{
		"gemma3_12b": {"model.layers.0.self_attn.q_norm.weight"},
		"gemma2_2b":  {},
		"gemma4":     {"model.layers.0.self_attn.q_norm.weight", "model.layers.0.layer_scalar"},
		"gemma4_e": {
			"model.layers.0.self_attn.q_norm.weight", "model.layers.0.layer_scalar", "model.embed_tokens_per_layer.weight",
		},
		"none of 4B": {"model.layers.0.self_attn.q_norm.weight", "narrow"},
	} {
		width := 3840
		set := map[string]weights.Stored{
			"model.layers.0.post_feedforward_layernorm.weight": weights.Floats(make([]float32, 4), 4),
		}
		for _, name := range with {
			if set[name] = weights.Floats(make([]float32, 4), 4); name == "narrow" {
				width = 2560
			}
		}
		set["model.embed_tokens.weight"] = weights.Floats(make([]float32, width), 1, width)
		kind := ""
		for _, p := range text.Find(weights.FromMap(set)) {
			kind += p.Kind
		}
		if kind != want && (kind != "" || !strings.HasPrefix(want, "none")) {
			t.Errorf("found %q, want %s", kind, want)
		}
	}
}
