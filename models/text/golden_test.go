package text_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/flux"
	"patchbay/models/sd3"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// tolerance is the bound of tests/golden/README.md section 2, relative to the largest value.
const tolerance = 2e-5

// recorded opens the tensors that ComfyUI produced.
func recorded(t testing.TB) *safetensors.File {
	t.Helper()
	f, err := golden.Open("text_vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func values(t testing.TB, f *safetensors.File, name string) []float32 {
	t.Helper()
	e, ok := f.Entry(name)
	if !ok {
		t.Fatalf("%s is not in the file", name)
	}
	v, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// compare fails the test if the largest difference exceeds bound, relative to the largest wanted value.
func compare(t testing.TB, what string, got, want []float32, bound float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %d values, want %d", what, len(got), len(want))
		return
	}
	scale, worst, at := 0.0, 0.0, 0
	for _, v := range want {
		scale = max(scale, math.Abs(float64(v)))
	}
	for i := range want {
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= worst) {
			worst, at = d, i
		}
		if worst != worst {
			break // a later, larger difference must not replace a NaN
		}
	}
	if !(worst <= bound*scale) {
		t.Errorf("%s: value %d is %g, want %g; relative error %.3g, bound %.3g", what, at, got[at], want[at],
			worst/scale, bound)
		return
	}
	t.Logf("%s: relative error %.2g", what, worst/scale)
}

// goldenCase is one entry of text_vae.json.
type goldenCase struct {
	Text  *string `json:"text"`
	IDs   []int   `json:"ids"`
	Layer int     `json:"layer"`
}

// cases returns the entries of text_vae.json whose keys begin with prefix.
func cases(t testing.TB, prefix string) map[string]goldenCase {
	t.Helper()
	var all map[string]json.RawMessage
	if err := golden.JSON("text_vae.json", &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]goldenCase{}
	for key, raw := range all {
		var c goldenCase
		if strings.HasPrefix(key, prefix) && json.Unmarshal(raw, &c) == nil && (c.Text != nil || c.IDs != nil) {
			out[key] = c
		}
	}
	if len(out) == 0 {
		t.Fatalf("no golden case begins with %s", prefix)
	}
	return out
}

// chunks returns a prompt's tokens in the layout of that name. Plain ids are one chunk. testdata/tokens.json holds
// what our tokenizer, which has tests of its own, produced with the public vocabularies, and what ComfyUI 0.8.0
// produced with BERT's.
func (c goldenCase) chunks(t testing.TB, layout string) [][]tokenizer.Token {
	t.Helper()
	type chunk struct {
		IDs     []int     `json:"ids"`
		Weights []float32 `json:"weights"` // absent: all 1
		Pads    int       `json:"pads"`    // number of padding tokens that follow
		Pad     int       `json:"pad"`     // their id
	}
	var list []chunk
	switch {
	case c.IDs != nil:
		list = []chunk{{IDs: c.IDs}}
	default:
		b, err := os.ReadFile("testdata/tokens.json")
		if err != nil {
			t.Fatal(err)
		}
		var all map[string]map[string][]chunk
		if err := json.Unmarshal(b, &all); err != nil {
			t.Fatal(err)
		}
		list = all[*c.Text][layout]
	}
	if len(list) == 0 {
		t.Fatalf("no tokens for %q in layout %s", *c.Text, layout)
	}
	var out [][]tokenizer.Token
	for _, k := range list {
		var tokens []tokenizer.Token
		for i, id := range k.IDs {
			w := float32(1)
			if k.Weights != nil {
				w = k.Weights[i]
			}
			tokens = append(tokens, tokenizer.Token{ID: id, Weight: w})
		}
		for range k.Pads {
			tokens = append(tokens, tokenizer.Token{ID: k.Pad, Weight: 1})
		}
		out = append(out, tokens)
	}
	return out
}

// checkpoint is a golden encoder's weights and config.
type checkpoint struct {
	set    *weights.Set
	config []byte
}

func load(t testing.TB, name string) checkpoint {
	t.Helper()
	set, config, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	if name == "clip-g-tiny" { // too few layers to be detected as CLIP-G
		config = []byte(strings.Replace(string(config), "{", `{"pad_token_id": 0, `, 1))
	}
	return checkpoint{set, config}
}

func (c checkpoint) clip(t testing.TB, ops engine.Ops) *text.CLIP {
	t.Helper()
	m, err := text.OpenCLIP(ops, c.set, c.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func (c checkpoint) t5(t testing.TB, ops engine.Ops) *text.T5 {
	t.Helper()
	m, err := text.OpenT5(ops, c.set, c.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func TestCLIPGolden(t *testing.T) {
	f := recorded(t)
	fileL, fileG := load(t, "clip-l-tiny"), load(t, "clip-g-tiny")
	for name, ops := range backends(t) {
		l, g := fileL.clip(t, ops), fileG.clip(t, ops)
		for key, c := range cases(t, "clip-") {
			model, layout, form := l, "clip_l", text.Form{Norm: true}
			switch {
			case strings.HasPrefix(key, "clip-g"):
				model, layout, form = g, "clip_g", text.Form{Layer: -2, Project: true}
			case strings.Contains(key, "/sd3_penultimate/"):
				form = text.Form{Layer: -2}
			case c.Layer != 0:
				form.Layer = c.Layer
			}
			chunks := c.chunks(t, layout)
			got, err := model.Encode(env(t, ops), chunks, form)
			if err != nil {
				t.Errorf("%s: %v", key, err)
				continue
			}
			compare(t, name+" "+key+"#out", got.Context.Data, values(t, f, key+"#out"), tolerance)
			compare(t, name+" "+key+"#pooled", got.Pooled, values(t, f, key+"#pooled"), tolerance)
		}
	}
}

func TestT5Golden(t *testing.T) {
	f := recorded(t)
	fileT5, fileMT5 := load(t, "t5-tiny"), load(t, "mt5-tiny")
	for name, ops := range backends(t) {
		model := fileT5.t5(t, ops)
		for key, c := range cases(t, "t5-tiny/") {
			layout, form := "t5_flux", text.Form{}
			switch {
			case strings.Contains(key, "/sd3/"):
				layout = "t5_sd3"
			case strings.Contains(key, "/pixart/"):
				layout, form.PadReference = "t5_pixart", true
			}
			chunks := c.chunks(t, layout)
			got, err := model.Encode(env(t, ops), chunks, form)
			if err != nil {
				t.Errorf("%s: %v", key, err)
				continue
			}
			compare(t, name+" "+key, got.Context.Data, values(t, f, key+"#out"), tolerance)
		}
		masked := fileMT5.t5(t, ops)
		for key, c := range cases(t, "mt5-tiny/") {
			chunks := c.chunks(t, "")
			got, err := masked.Encode(env(t, ops), chunks, text.Form{Masked: true})
			if err != nil {
				t.Errorf("%s: %v", key, err)
				continue
			}
			compare(t, name+" "+key, got.Context.Data, values(t, f, key+"#out"), tolerance)
			compareMask(t, key, got, values(t, f, key+"#attention_mask"))
		}
	}
}

func TestBERTGolden(t *testing.T) {
	f := recorded(t)
	set, config, err := goldenweights.Set("bert-tiny")
	if err != nil {
		t.Fatal(err)
	}
	for name, ops := range backends(t) {
		model, err := text.OpenBERT(ops, set, config)
		if err != nil {
			t.Fatal(err)
		}
		ran := 0
		for key, c := range cases(t, "bert-tiny/") {
			ran++
			got, err := model.Encode(env(t, ops), c.chunks(t, "bert"), text.Form{})
			if err != nil {
				t.Errorf("%s: %v", key, err)
				continue
			}
			compare(t, name+" "+key, got.Context.Data, values(t, f, key+"#out"), tolerance)
			compareMask(t, key, got, values(t, f, key+"#attention_mask"))
		}
		if ran != 6 {
			t.Errorf("%d BERT cases ran, want the 6 that are recorded", ran)
		}
		model.Close()
	}
}

func compareMask(t *testing.T, key string, got text.Encoding, want []float32) {
	t.Helper()
	for i, w := range want {
		if len(got.Valid) != len(want) || float32(got.Valid[i]) != w {
			t.Errorf("%s: mask %v, want %v", key, got.Valid, want)
			return
		}
	}
}

// entry returns the entry that a family builds from encodings.
func entry(t *testing.T, f family.Family, done map[string]*text.Encoding) dit.Entry {
	t.Helper()
	e, err := f.Text.Entry(done)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestWholeFLUX and TestWholeSD3 compare the conditioning computed from tokens with ComfyUI's.
func TestWholeFLUX(t *testing.T) {
	f := recorded(t)
	fileL, fileT5 := load(t, "clip-l-tiny"), load(t, "t5-tiny")
	for name, ops := range backends(t) {
		l, t5 := fileL.clip(t, ops), fileT5.t5(t, ops)
		textEnv := env(t, ops)
		for key, c := range cases(t, "whole/flux/") {
			words := c.chunks(t, "clip_l")
			pieces := c.chunks(t, "t5_flux")
			a, err := l.Encode(textEnv, words, text.Form{Norm: true})
			if err != nil {
				t.Fatal(err)
			}
			b, err := t5.Encode(textEnv, pieces, text.Form{})
			if err != nil {
				t.Fatal(err)
			}
			e := entry(t, flux.Family(), map[string]*text.Encoding{"clip_l": &a, "t5": &b})
			compare(t, name+" "+key+"#cond", e.Context.Data, values(t, f, key+"#cond"), tolerance)
			compare(t, name+" "+key+"#pooled", e.Pooled, values(t, f, key+"#pooled"), tolerance)
		}
	}
}

func TestWholeSD3(t *testing.T) {
	f := recorded(t)
	fileL, fileG := load(t, "clip-l-tiny"), load(t, "clip-g-tiny")
	for name, ops := range backends(t) {
		l, g := fileL.clip(t, ops), fileG.clip(t, ops)
		textEnv := env(t, ops)
		for key, c := range cases(t, "whole/sd3_lg/") {
			words := c.chunks(t, "clip_l")
			pieces := c.chunks(t, "clip_g")
			a, err := l.Encode(textEnv, words, text.Form{Layer: -2})
			if err != nil {
				t.Fatal(err)
			}
			b, err := g.Encode(textEnv, pieces, text.Form{Layer: -2, Project: true})
			if err != nil {
				t.Fatal(err)
			}
			e := entry(t, sd3.Family(), map[string]*text.Encoding{"clip_l": &a, "clip_g": &b})
			if e.Context.Rows != 77 || e.Context.Cols != 4096 {
				t.Fatalf("%s: context [%d, %d], want [77, 4096]", key, e.Context.Rows, e.Context.Cols)
			}
			var first []float32
			for r := range 77 {
				row := e.Context.Data[r*4096 : (r+1)*4096]
				first = append(first, row[:144]...)
				for i, v := range row[144:] {
					if v != 0 {
						t.Fatalf("%s: channel %d of row %d is %g, want 0", key, 144+i, r, v)
					}
				}
			}
			compare(t, name+" "+key+"#cond", first, values(t, f, key+"#cond_first144"), tolerance)
			compare(t, name+" "+key+"#pooled", e.Pooled, values(t, f, key+"#pooled"), tolerance)
		}
	}
}

// TestSD3Missing compares shapes and the positions of zeros for missing encoders with whole/sd3_missing/*.
func TestSD3Missing(t *testing.T) {
	var all map[string]json.RawMessage
	if err := golden.JSON("text_vae.json", &all); err != nil {
		t.Fatal(err)
	}
	part := func(width int) *text.Encoding {
		e := &text.Encoding{Pooled: make([]float32, width)}
		e.Context.Rows, e.Context.Cols, e.Context.Data = 77, width, make([]float32, 77*width)
		for i := range e.Context.Data {
			e.Context.Data[i] = 1
		}
		for i := range e.Pooled {
			e.Pooled[i] = 1
		}
		return e
	}
	for key, in := range map[string][2]*text.Encoding{
		"l1g0": {part(64), nil}, "l0g1": {nil, part(80)},
		"l0g0": {nil, nil},
	} {
		var want struct {
			Shape  [3]int `json:"cond_shape"`
			Pool   [2]int `json:"pooled_shape"`
			First  *int   `json:"first_nonzero_channel"`
			Last   *int   `json:"last_nonzero_channel"`
			Pooled []int  `json:"pooled_nonzero"`
		}
		if err := json.Unmarshal(all["whole/sd3_missing/"+key], &want); err != nil {
			t.Fatal(err)
		}
		e := entry(t, sd3.Family(), map[string]*text.Encoding{"clip_l": in[0], "clip_g": in[1]})
		if e.Context.Rows != want.Shape[1] || e.Context.Cols != want.Shape[2] || len(e.Pooled) != want.Pool[1] {
			t.Errorf("%s: context [%d, %d], pooled %d; want %v, %v", key, e.Context.Rows, e.Context.Cols, len(e.Pooled),
				want.Shape, want.Pool)
		}
		if got, want := span(e.Context.Data[:e.Context.Cols]), span2(want.First, want.Last); got != want {
			t.Errorf("%s: channels %s are not zero, want %s", key, got, want)
		}
		pool := "none"
		if len(want.Pooled) == 2 {
			pool = span2(&want.Pooled[0], &want.Pooled[1])
		}
		if got := span(e.Pooled); got != pool {
			t.Errorf("%s: pooled values %s are not zero, want %s", key, got, pool)
		}
	}
}

// span describes the range from the first to the last value that is not zero.
func span(v []float32) string {
	first, last := -1, -1
	for i, f := range v {
		if f != 0 {
			if last = i; first < 0 {
				first = i
			}
		}
	}
	if first < 0 {
		return "none"
	}
	return fmt.Sprintf("%d..%d", first, last)
}

func span2(first, last *int) string {
	if first == nil || last == nil {
		return "none"
	}
	return fmt.Sprintf("%d..%d", *first, *last)
}
