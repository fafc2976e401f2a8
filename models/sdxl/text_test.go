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
		maps.Copy(full, inOpenCLIP(t, sets["g"], "conditioner.embedders.1.model."))
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

// inOpenCLIP returns an encoder with the names of OpenCLIP, which this test states once more.
func inOpenCLIP(t *testing.T, set *weights.Set, prefix string) map[string]weights.Stored {
	t.Helper()
	f32 := func(name string) []float32 {
		s, ok := set.Get(name)
		if !ok {
			t.Fatalf("no %s", name)
		}
		return s.F32()
	}
	out := map[string]weights.Stored{}
	put := func(as, name string) {
		s, ok := set.Get(name)
		if !ok {
			t.Fatalf("no %s", name)
		}
		out[prefix+as] = s
	}
	const e = 80
	put("positional_embedding", "text_model.embeddings.position_embedding.weight")
	put("token_embedding.weight", "text_model.embeddings.token_embedding.weight")
	out[prefix+"logit_scale"] = weights.Floats([]float32{1})
	projection, turned := f32("text_projection.weight"), make([]float32, e*e)
	for r := range e {
		for c := range e {
			turned[c*e+r] = projection[r*e+c]
		}
	}
	out[prefix+"text_projection"] = weights.Floats(turned, e, e)
	for _, end := range []string{"weight", "bias"} {
		put("ln_final."+end, "text_model.final_layer_norm."+end)
		for i := range 4 {
			open, own := fmt.Sprintf("transformer.resblocks.%d.", i), fmt.Sprintf("text_model.encoder.layers.%d.", i)
			for as, name := range map[string]string{
				"ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2",
				"attn.out_proj": "self_attn.out_proj",
			} {
				put(open+as+"."+end, own+name+"."+end)
			}
			var stacked []float32
			for _, of := range []string{"q", "k", "v"} {
				stacked = append(stacked, f32(own+"self_attn."+of+"_proj."+end)...)
			}
			shape := []int{3 * e, e}
			if end == "bias" {
				shape = shape[:1]
			}
			out[prefix+open+"attn.in_proj_"+end] = weights.Floats(stacked, shape...)
		}
	}
	return out
}
