package text_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/wan"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// wanFile returns a small umT5 with its vocabulary inside, as files have it.
func wanFile(t *testing.T, model string, vocabulary []byte) *weights.Set {
	t.Helper()
	set, _, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]weights.Stored{
		"spiece_model": {DType: engine.U8, Shape: []int{len(vocabulary)}, Data: vocabulary},
	}
	for _, name := range set.Names() {
		all[name], _ = set.Get(name)
	}
	return weights.FromMap(all)
}

// TestUMT5 compares the tokens and the states of small umT5 encoders with ComfyUI's: every block has a bias of its own,
// padding is no key, and the rows behind a prompt are zeros up to 512.
func TestUMT5(t *testing.T) {
	f, err := golden.Open("wan/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	vocabulary, err := golden.Read("wan/spiece_synthetic.model")
	if err != nil {
		t.Fatal(err)
	}
	words, err := tokenizer.FromSentencePiece(vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	reader := wan.Family().Text
	as, ok := reader.Encoder("umt5")
	if !ok {
		t.Fatal("Wan has no umT5")
	}
	var tokens map[string]json.RawMessage
	if err := golden.JSON("wan/tokens.json", &tokens); err != nil {
		t.Fatal(err)
	}
	for key, raw := range tokens {
		var c struct {
			Text   string
			Chunks []struct {
				Total   int
				IDs     []int
				Weights []float32
			}
		}
		if key[0] != 'p' {
			continue
		}
		if err := json.Unmarshal(raw, &c); err != nil {
			t.Fatal(err)
		}
		p, err := as.Layout.Prompt(words, c.Text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Chunks) != len(c.Chunks) {
			t.Fatalf("%s: %d chunks, want %d", key, len(p.Chunks), len(c.Chunks))
		}
		for i, want := range c.Chunks {
			var ids []int
			for k, token := range p.Chunks[i] {
				if k < len(want.IDs) {
					ids = append(ids, token.ID)
					if want.Weights != nil && token.Weight != want.Weights[k] {
						t.Errorf("%s: token %d has weight %v, want %v", key, k, token.Weight, want.Weights[k])
					}
				} else if token.ID != 0 {
					t.Errorf("%s: padding of %d", key, token.ID)
				}
			}
			if !slices.Equal(ids, want.IDs) || len(p.Chunks[i]) != want.Total {
				t.Errorf("%s: %d tokens %v, want %d, %v", key, len(p.Chunks[i]), ids, want.Total, want.IDs)
			}
		}
	}
	var cases map[string]struct {
		Text string
		Cond []int
		Rows int `json:"nonzero_rows"`
	}
	if err := golden.JSON("wan/text.json", &cases); err != nil {
		t.Fatal(err)
	}
	for name, ops := range backends(t) {
		for _, model := range []string{"umt5-a", "umt5-b"} {
			set := wanFile(t, model, vocabulary)
			if found := text.Find(set); len(found) != 1 || found[0].Kind != "umt5" {
				t.Fatalf("%s holds %v, want a umT5", model, found)
			}
			m, err := text.OpenPart(ops, "umt5", set, nil, 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			for key, c := range cases {
				if !strings.HasPrefix(key, model+"/") || name == "ref" && c.Text != "" {
					continue // 512 rows are slow there
				}
				p, err := as.Layout.Prompt(words, c.Text, nil)
				if err != nil {
					t.Fatal(err)
				}
				got, err := m.Encode(env(t, ops), p.Chunks, as.Form)
				if err != nil {
					t.Fatal(err)
				}
				n := c.Rows * c.Cond[2]
				compare(t, name+" "+key, got.Context.Data[:n], values(t, f, key+"#cond_first_rows"), tolerance)
				filled := func(v float32) bool { return v != 0 }
				if got.Context.Rows != c.Cond[1] || slices.ContainsFunc(got.Context.Data[n:], filled) {
					t.Errorf("%s %s: %d rows, or others than zeros behind the prompt; want %d", name, key, got.Context.Rows, c.Cond[1])
				}
			}
			m.Close()
		}
	}
}
