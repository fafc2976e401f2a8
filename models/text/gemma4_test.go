package text_test

import (
	"slices"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/ltx"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// gemma4Words returns the small vocabulary that prompts of a Gemma 4 were recorded with.
func gemma4Words(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	vocabulary, err := golden.Read("ltx/gemma4_tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	words, err := tokenizer.FromJSON(vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	return words
}

// gemma4Kind returns the kind of a recorded Gemma 4.
func gemma4Kind(model string) string {
	if strings.HasPrefix(model, "gemma4-e") {
		return "gemma4_e"
	}
	return "gemma4"
}

// TestGemma4Tokens compares the tokens of prompts with ComfyUI's, with its pads left out, and what they read as again.
func TestGemma4Tokens(t *testing.T) {
	words := gemma4Words(t)
	reader := ltx.Family().Text
	var cases map[string]struct {
		Text, Decoded string
		IDs           []int
	}
	if err := golden.JSON("ltx/gemma4_tokens.json", &cases); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"gemma4", "gemma4_e"} {
		as, _ := reader.Encoder(kind)
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
				t.Errorf("%s %s: tokens %v, want %v", kind, key, ids, c.IDs)
			}
			if got := text.KindOf(kind).Chat.Clean(words.Decode(c.IDs)); got != c.Decoded {
				t.Errorf("%s %s: reads %q, want %q", kind, key, got, c.Decoded)
			}
		}
	}
	for written, want := range map[string]string{
		"<|channel>thought\na\nb<channel|>c<turn|><eos>": "<think>\na\nb</think>c",
		"<|channel>thought\nnever ends":                  "<think>\nnever ends",
		"a<channel|> <|turn>model\nb ":                   "a b",
		"<|channel>final\n<|think|>c":                    "<|think|>c",
	} {
		if got := text.KindOf("gemma4").Chat.Clean(written); got != want {
			t.Errorf("%q becomes %q, want %q", written, got, want)
		}
	}
}

// TestGemma4 compares three small Gemma 4 with ComfyUI's, all states from the embeddings to the last with its norm, in
// prompts that are longer than what most layers see: one like that of 12B, without values in layers that see all, and
// what projections make of it, one like E2B, of which the last layers share keys and are wider, and one like E4B.
func TestGemma4(t *testing.T) {
	f, err := golden.Open("ltx/gemma4.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	words := gemma4Words(t)
	var cases map[string]struct {
		Text string
		Cond []int
	}
	if err := golden.JSON("ltx/gemma4.json", &cases); err != nil {
		t.Fatal(err)
	}
	reader := ltx.Family().Text
	for name, ops := range backends(t) {
		for key, c := range cases {
			_, states := f.Entry(key + "#states")
			if !states && c.Cond == nil {
				continue
			}
			model := strings.Split(key, "/")[0]
			kind := gemma4Kind(model)
			set, config, err := goldenweights.Set(model)
			if err != nil {
				t.Fatal(err)
			}
			m, err := text.OpenPart(ops, kind, set, config, 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			if unused := m.Unused(); len(unused) > 0 {
				t.Errorf("%s: %v are not used", model, unused)
			}
			as, _ := reader.Encoder(kind)
			p, err := as.Layout.Prompt(words, c.Text, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.Encode(env(t, ops), p.Chunks, text.Form{All: true, Behind: as.Form.Behind})
			if err != nil {
				t.Fatal(err)
			}
			if states {
				want := values(t, f, key+"#states")
				n := len(want) / got.States
				for s := range got.States {
					compare(t, name+" "+key+"#states", stateOf(got, s), want[s*n:(s+1)*n], tolerance)
				}
			}
			if c.Cond != nil {
				to, err := text.OpenPart(ops, "projection", set, nil, 0, 1, 0)
				if err != nil {
					t.Fatal(err)
				}
				out, err := to.Encode(env(t, ops), [][]tokenizer.Token{got.Tokens()}, text.Form{States: got.States})
				if err != nil {
					t.Fatal(err)
				}
				compare(t, name+" "+key, out.Context.Data, values(t, f, key+"#cond"), tolerance)
				to.Close()
			}
			m.Close()
		}
	}
}

// TestGemma4Writes compares the tokens that small Gemma 4 write with ComfyUI's, the likeliest and sampled ones, with
// caches that layers share, tokens of the prompt that count as drawn, and capped scores.
func TestGemma4Writes(t *testing.T) {
	var cases map[string]gemma4Written
	if err := golden.JSON("ltx/gemma4_generate.json", &cases); err != nil {
		t.Fatal(err)
	}
	ops, _ := fastest(nativeBackends(t))
	for key, c := range cases {
		model := strings.Split(key, "/")[0]
		if c.Pads > 0 && (testing.Short() || !strings.HasSuffix(key, "hot")) {
			continue // 1,024 tokens; node/classes has others
		}
		set, config, err := goldenweights.Set(model)
		if err != nil {
			t.Fatal(err)
		}
		net, err := text.OpenPart(ops, gemma4Kind(model), set, config, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		head, err := text.OpenHead(ops, set)
		if err != nil {
			t.Fatal(err)
		}
		var chunk []tokenizer.Token
		for _, id := range append(make([]int, c.Pads), c.Asked...) {
			chunk = append(chunk, tokenizer.Token{ID: id, Weight: 1})
		}
		d := text.Sampling{MaxTokens: c.Most, Greedy: c.Sampling == nil, Stop: text.KindOf("gemma4").Chat.StopIDs}
		if s := c.Sampling; s != nil {
			d.Temperature, d.TopK, d.TopP, d.MinP, d.Seed = s.Temperature, s.TopK, s.TopP, s.MinP, s.Seed
			d.Repetition, d.Presence = s.Repetition, s.Presence
		}
		got, err := net.(*text.LM).Generate(env(t, ops), head, chunk, text.Form{}, d)
		if err != nil || !slices.Equal(got, c.IDs) {
			t.Errorf("%s: got %v, %v, want %v", key, got, err, c.IDs)
		}
		head.Close()
		net.Close()
	}
}

// gemma4Written is one entry of ltx/gemma4_generate.json.
type gemma4Written struct {
	Prompt, Text string
	Bare         bool
	Sampling     *struct {
		Temperature float64
		TopK        int     `json:"top_k"`
		TopP        float64 `json:"top_p"`
		MinP        float64 `json:"min_p"`
		Repetition  float64 `json:"repetition_penalty"`
		Presence    float64 `json:"presence_penalty"`
		Seed        uint64
	}
	Most  int `json:"max_length"`
	Asked []int
	Pads  int
	IDs   []int
}

// TestGemma4Refusals checks the errors for layers that cannot share keys as the file says, and heads that do not fit.
func TestGemma4Refusals(t *testing.T) {
	set, config, err := goldenweights.Set("gemma4-e4")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := text.Parts("gemma4_e", set, config, 4); n != 1 || err != nil {
		t.Errorf("%d parts, %v, want 1", n, err)
	}
	short := map[string]weights.Stored{}
	for _, name := range set.Names() {
		short[name], _ = set.Get(name)
	}
	short["model.layers.1.self_attn.q_proj.weight"] = weights.Floats(make([]float32, 40*40), 40, 40)
	for config, c := range map[string]struct {
		set  *weights.Set
		want string
	}{
		`{"num_kv_shared_layers": 9}`:  {set, "num_kv_shared_layers is 9 of 12 layers, allowed are 0..6"},
		`{"num_kv_shared_layers": -1}`: {set, "num_kv_shared_layers is -1"},
		`{}`:                           {weights.FromMap(short), "layer 1 has 40 rows of queries"},
	} {
		_, err := text.OpenPart(ref.New(), "gemma4_e", c.set, []byte(config), 0, 1, 0)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that says %q", config, err, c.want)
		}
	}
}
