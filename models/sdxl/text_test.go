package sdxl

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/goldenrun"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// textCase is an entry of sdxl/text.json.
type textCase struct {
	Cond    []int
	IDs     [][]int `json:"ids_l"`
	Weights any     // "all 1", or numbers by chunk
	Layer   any     `json:"clip_layer"` // a number, or what the default is
}

// chunks returns the prompt for an encoder that pads with pad.
func (c textCase) chunks(t *testing.T, pad int) (out [][]tokenizer.Token) {
	t.Helper()
	var factors [][]float64
	if text, err := json.Marshal(c.Weights); err != nil {
		t.Fatal(err)
	} else if _, same := c.Weights.(string); !same {
		if err := json.Unmarshal(text, &factors); err != nil {
			t.Fatal(err)
		}
	}
	for i, ids := range c.IDs {
		var chunk []tokenizer.Token
		ended := false
		for k, id := range ids {
			w := float32(1)
			if factors != nil {
				w = float32(factors[i][k])
			}
			if ended {
				id = pad
			}
			ended = ended || id == 49407
			chunk = append(chunk, tokenizer.Token{ID: id, Weight: w})
		}
		out = append(out, chunk)
	}
	return out
}

// TestTextMatchesComfyUI checks recorded prompts of SDXL through both encoders, with several layers of
// CLIPSetLastLayer, from files with Hugging Face's names and from a full checkpoint.
func TestTextMatchesComfyUI(t *testing.T) {
	cases := map[string]textCase{}
	if err := golden.JSON("sdxl/text.json", &cases); err != nil {
		t.Fatal(err)
	}
	file, err := golden.Open("sdxl/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	want := func(name string) []float32 {
		e, ok := file.Entry(name)
		if !ok {
			t.Fatalf("no tensor %s", name)
		}
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, inside := range []bool{false, true} {
		l, g := goldenEncoders(t, inside)
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			if strings.HasPrefix(name, "sdxl-clip-b") || testing.Short() && inside != strings.Contains(name, "/2") {
				continue
			}
			c, done := cases[name], map[string]*text.Encoding{}
			if len(c.IDs) == 0 {
				t.Fatalf("%s has no ids", name)
			}
			for i, net := range []text.Net{l, g} {
				e := Family().Text.Encoders[i]
				if n, ok := c.Layer.(float64); ok {
					e.Form.Layer = int(n)
				}
				out, err := net.Encode(text.Env{Ops: ref.New()}, c.chunks(t, []int{49407, 0}[i]), e.Form)
				if err != nil {
					t.Fatal(err)
				}
				done[e.Kind] = &out
			}
			entry, err := join(done)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := entry.Context.Rows*entry.Context.Cols, c.Cond[1]*c.Cond[2]; got != want {
				t.Errorf("%s: %d values, want %d", name, got, want)
			}
			for part, got := range map[string][]float32{"#cond": entry.Context.Data, "#pooled": entry.Pooled} {
				if worst, err := goldenrun.Compare(got, want(name+part), goldenrun.Rel); err != nil {
					t.Errorf("%s%s: %v", name, part, err)
				} else {
					t.Logf("%s%s: %.2g", name, part, worst)
				}
			}
		}
	}
	if _, err := join(map[string]*text.Encoding{"clip_l": {}}); err == nil || !strings.Contains(err.Error(), "clip_g") {
		t.Errorf("one encoder: %v", err)
	}
}

// TestTextOfTheRefiner checks recorded prompts of the refiner through CLIP-G alone, with the names that its checkpoint
// has.
func TestTextOfTheRefiner(t *testing.T) {
	var cases map[string]struct {
		IDs     [][]int
		Weights [][]float32
		Cond    []int
	}
	if err := golden.JSON("refiner/text.json", &cases); err != nil {
		t.Fatal(err)
	}
	file, err := golden.Open("refiner/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_, g := goldenEncoders(t, true)
	reads := Refiner().Text
	encoder := reads.Encoders[0]
	if len(cases) < 4 {
		t.Fatalf("%d cases", len(cases))
	}
	for name, c := range cases {
		var chunks [][]tokenizer.Token
		for i, ids := range c.IDs {
			var chunk []tokenizer.Token
			for k, id := range ids {
				chunk = append(chunk, tokenizer.Token{ID: id, Weight: c.Weights[i][k]})
			}
			chunks = append(chunks, chunk)
		}
		out, err := g.Encode(text.Env{Ops: ref.New()}, chunks, encoder.Form)
		if err != nil {
			t.Fatal(err)
		}
		entry, err := reads.Entry(map[string]*text.Encoding{encoder.Kind: &out})
		if err != nil || entry.Context.Rows != c.Cond[1] || entry.Context.Cols != c.Cond[2] {
			t.Fatalf("%s: %d rows of %d, %v; want %v", name, entry.Context.Rows, entry.Context.Cols, err, c.Cond)
		}
		for part, got := range map[string][]float32{"#cond": entry.Context.Data, "#pooled": entry.Pooled} {
			e, ok := file.Entry(name + part)
			if !ok {
				t.Fatalf("no tensor %s", name+part)
			}
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			if worst, err := goldenrun.Compare(got, want, goldenrun.Rel); err != nil {
				t.Errorf("%s%s: %v", name, part, err)
			} else {
				t.Logf("%s%s: %.2g", name, part, worst)
			}
		}
	}
}

// goldenEncoders opens the recorded encoders, from files of their own or inside a full checkpoint, where CLIP-G has
// OpenCLIP's names.
func goldenEncoders(t *testing.T, inside bool) (l, g *text.CLIP) {
	t.Helper()
	open := func(set *weights.Set, heads int, act string, pad int) *text.CLIP {
		config := fmt.Sprintf(`{"num_attention_heads": %d, "hidden_act": %q, "pad_token_id": %d}`, heads, act, pad)
		n, err := text.OpenCLIP(ref.New(), set, []byte(config))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		return n
	}
	sets := map[string]*weights.Set{}
	for _, kind := range []string{"l", "g"} {
		set, _, err := goldenweights.Set("sdxl-clip-" + kind + "-a")
		if err != nil {
			t.Fatal(err)
		}
		sets[kind] = set
	}
	if inside {
		full := map[string]weights.Stored{}
		for _, name := range sets["l"].Names() {
			full["conditioner.embedders.0.transformer."+name], _ = sets["l"].Get(name)
		}
		open, err := goldenweights.OpenCLIP(sets["g"], "conditioner.embedders.1.model.", 4)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(full, open)
		all := weights.FromMap(full)
		sets["l"] = all.Prefix("conditioner.embedders.0.transformer.")
		sets["g"] = all.Prefix("conditioner.embedders.1.model.")
		found := fmt.Sprint(text.Find(all)) // the tiny CLIP-G has too few layers to be told from CLIP-L
		if want := "[{clip_l conditioner.embedders.0.transformer.} {clip_l conditioner.embedders.1.model.}]"; found != want {
			t.Errorf("found %s, want %s", found, want)
		}
	}
	return open(sets["l"], 4, "quick_gelu", 49407), open(sets["g"], 5, "gelu", 0)
}
