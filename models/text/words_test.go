package text_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"patchbay/models/auraflow"
	"patchbay/models/family"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights/goldenweights"
	"patchbay/models/zimage"
	"patchbay/tests/golden"
)

// TestWordsToStates compares tokens and states of prompts, some of them weighted, with ComfyUI's for the same
// SentencePiece vocabulary: of a small Gemma 2 as Lumina 2 uses it, and of a small Pile-T5 as AuraFlow does.
func TestWordsToStates(t *testing.T) {
	f, err := golden.Open("modern/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	words, err := tokenizer.Open(filepath.Join("..", "tokenizer", "testdata", "tiny_bpe.model"))
	if err != nil {
		t.Fatal(err)
	}
	for model, of := range map[string]family.Family{"gemma2-a": zimage.Lumina2(), "pile-t5-a": auraflow.Family()} {
		encoder := of.Text.Encoders[len(of.Text.Encoders)-1]
		set, config, err := goldenweights.Set(model)
		if err != nil {
			t.Fatal(err)
		}
		if found := text.Find(set); len(found) != 1 || found[0].Kind != encoder.Kind {
			t.Fatalf("%s is recognised as %v, want %s", model, found, encoder.Kind)
		}
		for name, ops := range backends(t) {
			m, err := text.OpenPart(ops, encoder.Kind, set, config, 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				key := model + "/" + string(rune('0'+i))
				var all map[string]struct {
					Text string
					IDs  json.RawMessage
				}
				if err := golden.JSON("modern/text.json", &all); err != nil {
					t.Fatal(err)
				}
				p, err := encoder.Layout.Prompt(words, all[key].Text, nil)
				if err != nil {
					t.Fatal(err)
				}
				var got, want []int
				for _, token := range p.Chunks[0] {
					got = append(got, token.ID)
				}
				if err := json.Unmarshal(all[key].IDs, &want); err != nil || !slices.Equal(got, want) {
					t.Fatalf("%s: %q is %v, want %v, %v", key, all[key].Text, got, want, err)
				}
				e, err := m.Encode(env(t, ops), p.Chunks, encoder.Form)
				if err != nil {
					t.Fatal(err)
				}
				done, err := of.Text.Entry(map[string]*text.Encoding{encoder.Kind: &e})
				if err != nil {
					t.Fatal(err)
				}
				compare(t, name+" "+key, done.Context.Data, values(t, f, key+"#cond"), tolerance)
			}
			m.Close()
		}
	}
}
