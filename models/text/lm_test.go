package text_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/ref"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// lmCase is one entry of modern/text.json.
type lmCase struct {
	Text *string         `json:"text"`
	IDs  json.RawMessage `json:"ids"` // a list, or a list of one chunk
	// Total is the number of tokens including trailing padding, where IDs lacks the padding.
	Total int `json:"total"`
}

// ids returns the tokens of a case: its own, or those recorded for its text in a family's template.
func (c lmCase) ids(t *testing.T, template string) []tokenizer.Token {
	t.Helper()
	var ids []int
	var chunk [][]int
	if json.Unmarshal(c.IDs, &ids) != nil && json.Unmarshal(c.IDs, &chunk) == nil && len(chunk) == 1 {
		ids = chunk[0]
	}
	if len(c.IDs) == 0 {
		var all map[string]map[string]json.RawMessage
		if err := golden.JSON("modern/tokens.json", &all); err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			var words string
			var chunks [][]int
			if json.Unmarshal(p["text"], &words) == nil && words == *c.Text &&
				json.Unmarshal(p[template], &chunks) == nil && len(chunks) == 1 {
				ids = chunks[0]
			}
		}
	}
	if len(ids) == 0 {
		t.Fatalf("no tokens are recorded for %q", *c.Text)
	}
	for len(ids) < c.Total {
		ids = append(ids, 151643)
	}
	var out []tokenizer.Token
	for _, id := range ids {
		out = append(out, tokenizer.Token{ID: id, Weight: 1})
	}
	return out
}

// TestLanguageModel compares the states of small language models with those that ComfyUI gives each family. Z-Image
// gets the last layer but one of a Qwen3, without norm. One case has a pad inside, after which no token is a key, and
// one has 164 tokens. Qwen-Image gets the last layer of a Qwen2.5-VL with norm, without the template's first turn, even
// if prompts have a template of their own; plain ids lose nothing. FLUX.2 gets the inputs of three layers side by side:
// klein for 512 tokens whose pads are no keys, dev from a Mistral, whole and cut off after the last of these layers,
// where the tokenizer's pad is a key and token 0 is none. Krea 2 gets the inputs of twelve layers of a Qwen3-VL.
func TestLanguageModel(t *testing.T) {
	for _, c := range []struct {
		model, kind, template string
		form                  text.Form
		cases                 int
	}{
		{"qwen3-a", "qwen3", "z_image", text.Form{Layer: -2}, 10},
		{"qwen25vl-a", "qwen25_7b", "qwen_image", text.Form{Chat: true}, 10},
		{"klein-qwen3-a", "qwen3", "klein", text.Form{Taps: []int{9, 18, 27}}, 3},
		{
			"krea2-qwen3vl-a",
			"qwen3vl_4b",
			"",
			text.Form{Chat: true, Taps: []int{2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35}},
			4,
		},
		{"mistral3-a", "mistral3", "", text.Form{Taps: []int{10, 20, 30}}, 6},
		{"mistral3-p", "mistral3", "", text.Form{Taps: []int{10, 20, 30}}, 5},
	} {
		languageModel(t, c.model, c.kind, c.template, c.form, c.cases)
	}
}

func languageModel(t *testing.T, model, kind, template string, form text.Form, cases int) {
	t.Helper()
	f, err := golden.Open("modern/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var all map[string]lmCase
	if err := golden.JSON("modern/text.json", &all); err != nil {
		t.Fatal(err)
	}
	set, _, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	if found := text.Find(set); len(found) != 1 || found[0].Kind != kind {
		t.Fatalf("%s is recognised as %v, want %s", model, found, kind)
	}
	for name, ops := range backends(t) {
		m, err := text.OpenPart(ops, kind, set, nil, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		slow := strings.HasPrefix(model, "klein") && !strings.HasPrefix(name, "cpu")
		ran := 0
		for key, c := range all {
			if !strings.HasPrefix(key, model+"/") || key == "qwen25vl-a/0/states" || strings.Contains(key, "/image/") {
				continue
			}
			ran++
			if slow && (name != "ref" || !strings.HasSuffix(key, "/2")) {
				continue // 512 tokens, of which one case takes 5 s there
			}
			chunk, wants := [][]tokenizer.Token{c.ids(t, template)}, form
			wants.Chat = form.Chat && !strings.Contains(key, "/ids/")
			got, err := m.Encode(env(t, ops), chunk, wants)
			if err != nil {
				t.Errorf("%s: %v", key, err)
				continue
			}
			compare(t, name+" "+key, got.Context.Data, values(t, f, key+"#cond"), tolerance)
			if key == "qwen3-a/0" {
				first, err := m.Encode(env(t, ops), chunk, text.Form{Layer: -4})
				if err != nil {
					t.Fatal(err)
				}
				compare(t, name+" first layer", first.Context.Data, values(t, f, key+"#layer.0"), tolerance)
			}
		}
		if ran != cases {
			t.Errorf("%d cases of %s ran, want the %d that are recorded", ran, model, cases)
		}
		m.Close()
	}
}

// TestPadsOfFLUX3 compares the states of eight layers of a Qwen3-VL with recorded ones, those of pads included, which
// are no keys and are all at position 1.
func TestPadsOfFLUX3(t *testing.T) {
	f, err := golden.Open("flux3/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var cases map[string]struct {
		Tokens, Rows int
		Taps         []int
	}
	var words map[string]struct {
		IDs   []int `json:"ids_without_end_padding"`
		Total int
	}
	if err := errors.Join(golden.JSON("flux3/text.json", &cases), golden.JSON("flux3/tokens.json", &words)); err != nil {
		t.Fatal(err)
	}
	const model = "f3-qwen3vl-a"
	set, config, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	for name, ops := range backends(t) {
		m, err := text.OpenPart(ops, "qwen3", set, config, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		for key, c := range cases {
			p := words[strings.TrimPrefix(key, model+"/")]
			if p.Total != c.Rows || len(p.IDs) != c.Tokens {
				t.Fatalf("%s has %d tokens of %d, want %d of %d", key, len(p.IDs), p.Total, c.Tokens, c.Rows)
			}
			if c.Rows > 80 && !strings.HasPrefix(name, "cpu") {
				continue // takes long on ref
			}
			chunk := make([]tokenizer.Token, p.Total)
			for i := range chunk {
				chunk[i] = tokenizer.Token{ID: 151643, Weight: 1}
				if i < len(p.IDs) {
					chunk[i].ID = p.IDs[i]
				}
			}
			got, err := m.Encode(env(t, ops), [][]tokenizer.Token{chunk}, text.Form{Taps: c.Taps, PadsAtOne: true})
			if err != nil {
				t.Errorf("%s: %v", key, err)
				continue
			}
			compare(t, name+" "+key, got.Context.Data, values(t, f, key+"#cond"), tolerance)
		}
		m.Close()
	}
	if len(cases) < 4 {
		t.Errorf("%d cases, want at least 4", len(cases))
	}
}

// TestLayersThatNobodyReads checks that unused layers are not loaded: a Mistral with 32 layers and a final norm takes
// as many bytes as one that is cut off after 30 layers.
func TestLayersThatNobodyReads(t *testing.T) {
	ops := backends(t)["cpu/generic"]
	if ops == nil {
		t.Skip("NOT RUN: ref does not tell the bytes of weights")
	}
	var bytes []int64
	for _, name := range []string{"mistral3-a", "mistral3-p"} {
		set, _, err := goldenweights.Set(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := text.OpenPart(ops, "mistral3", set, nil, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		bytes = append(bytes, m.Bytes())
		m.Close()
	}
	if bytes[0] != bytes[1] || bytes[0] == 0 {
		t.Errorf("%d bytes are loaded of the whole model, %d of the short one", bytes[0], bytes[1])
	}
}

// TestLanguageModelRefusals checks the errors for files whose attention heads cannot be determined.
func TestLanguageModelRefusals(t *testing.T) {
	set, _, err := goldenweights.Set("qwen3-a")
	if err != nil {
		t.Fatal(err)
	}
	for config, want := range map[string]string{
		`{"head_dim": 7}`: "head_dim is 7", `{"rope_theta": 0}`: "rope_theta 0", `{`: "text encoder config",
	} {
		_, err := text.OpenPart(nil, "qwen3", set, []byte(config), 0, 1, 0)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one that says %q", config, err, want)
		}
	}
	if _, err := text.OpenPart(nil, "qwen3", weights.FromMap(nil), nil, 0, 1, 0); err == nil {
		t.Error("a file without tensors was opened")
	}
}

// TestLanguageModelFromGGUF checks that small language models give the same states from files as llama.cpp's converter
// writes them, whose tables (names) and formulas are written here by hand: LLAMA's rows of queries and keys are
// reshaped [heads, 2, rows, ...] -> [heads, rows, 2, ...], norms of GEMMA2 and GEMMA3 get 1 added (which rounds),
// vision towers are left out.
func TestLanguageModelFromGGUF(t *testing.T) {
	for _, c := range []struct {
		model, arch, kind string
		heads, keyHeads   int
		bound             float64
	}{
		{"qwen3-a", "qwen3", "qwen3", 0, 0, 0},
		{"qwen25vl-a", "qwen2vl", "qwen25_7b", 0, 0, 0},
		{"krea2-qwen3vl-a", "qwen3vl", "qwen3vl_4b", 0, 0, 0},
		{"mistral3-p", "llama", "mistral3", 3, 1, 0},
		{"gemma2-a", "gemma2", "gemma2_2b", 0, 0, 2e-6},
		{"gemma3-a", "gemma3", "gemma3_12b", 0, 0, 2e-6},
	} {
		set, _, err := goldenweights.Set(c.model)
		if err != nil {
			t.Fatal(err)
		}
		list := []string{
			"model.embed_tokens.", "token_embd.", "model.norm.", "output_norm.", "model.layers.", "blk.",
			".self_attn.q_norm.", ".attn_q_norm.", ".self_attn.k_norm.", ".attn_k_norm.", ".self_attn.q_proj.", ".attn_q.",
			".self_attn.k_proj.", ".attn_k.", ".self_attn.v_proj.", ".attn_v.", ".self_attn.o_proj.", ".attn_output.",
			".input_layernorm.", ".attn_norm.", ".mlp.gate_proj.", ".ffn_gate.", ".mlp.up_proj.", ".ffn_up.",
			".mlp.down_proj.", ".ffn_down.",
		}
		gemma := strings.HasPrefix(c.arch, "gemma")
		if gemma {
			list = append(list, ".pre_feedforward_layernorm.", ".ffn_norm.", ".post_feedforward_layernorm.", ".post_ffw_norm.",
				".post_attention_layernorm.", ".post_attention_norm.")
		} else {
			list = append(list, ".post_attention_layernorm.", ".ffn_norm.")
		}
		llama := strings.NewReplacer(list...)
		var tensors []ggufwrite.Tensor
		for _, name := range set.Names() {
			if strings.Contains(name, "visual.") || strings.Contains(name, "lm_head.") ||
				strings.HasPrefix(name, "text_embedding_projection.") {
				continue
			}
			s, _ := set.Get(name)
			v := s.F32()
			heads := 0
			switch {
			case strings.Contains(name, ".q_proj."):
				heads = c.heads
			case strings.Contains(name, ".k_proj."):
				heads = c.keyHeads
			}
			if heads > 0 {
				v = turned(v, heads, s.Shape[0]/heads, len(v)/s.Shape[0])
			}
			if gemma && strings.HasSuffix(name, "norm.weight") {
				for i := range v {
					v[i]++
				}
			}
			tensors = append(tensors, ggufwrite.Tensor{
				Name: llama.Replace(strings.Replace(name, "model.language_model.", "model.", 1)), Type: gguf.F32, Shape: s.Shape,
				Data: ggufwrite.Quantise(gguf.F32, v),
			})
		}
		f, err := gguf.OpenBytes(ggufwrite.File(map[string]any{
			"general.architecture": c.arch, c.arch + ".attention.head_count": uint32(c.heads),
			c.arch + ".attention.head_count_kv": uint32(c.keyHeads),
		}, tensors))
		if err != nil {
			t.Fatal(err)
		}
		stored, err := weights.FromGGUF(f, engine.BF16)
		if err != nil {
			t.Fatal(err)
		}
		if found := text.Find(stored); len(found) != 1 || found[0].Kind != c.kind {
			t.Fatalf("%s: found %v, want one %s", c.model, found, c.kind)
		}
		ops := ref.New()
		run := func(set *weights.Set) []float32 {
			m, err := text.OpenPart(ops, c.kind, set, nil, 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			got, err := m.Encode(env(t, ops), tokens([]float32{5, 90, 33, 41, 1}), text.Form{Layer: -2})
			if err != nil {
				t.Fatal(err)
			}
			return got.Context.Data
		}
		compare(t, c.arch, run(stored), run(set), c.bound)
	}
}

// turned swaps the axes of [heads, 2, d/2, k] to [heads, d/2, 2, k].
func turned(v []float32, heads, d, k int) (out []float32) {
	for h := range heads {
		for j := range d / 2 {
			for half := range 2 {
				at := (h*d + half*d/2 + j) * k
				out = append(out, v[at:at+k]...)
			}
		}
	}
	return out
}
