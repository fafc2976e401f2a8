package text_test

import (
	"errors"
	"slices"
	"testing"

	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestGenerate compares the tokens that a small Qwen3-VL generates with ComfyUI's, with greedy decoding and sampling.
func TestGenerate(t *testing.T) {
	var file struct {
		Model, Prompt string
		Cases         map[string]struct {
			Sample      bool `json:"do_sample"`
			Most        int  `json:"max_length"`
			Temperature float64
			TopK        int     `json:"top_k"`
			TopP        float64 `json:"top_p"`
			MinP        float64 `json:"min_p"`
			Repetition  float64 `json:"repetition_penalty"`
			Presence    float64 `json:"presence_penalty"`
			Seed        uint64
			IDs         []int
		}
	}
	var prompts map[string]lmCase
	err := errors.Join(golden.JSON("modern33/generate.json", &file), golden.JSON("modern/text.json", &prompts))
	if err != nil {
		t.Fatal(err)
	}
	set, _, err := goldenweights.Set(file.Model)
	if err != nil {
		t.Fatal(err)
	}
	chunk := prompts[file.Prompt].ids(t, "")
	_, fast := fastest(backends(t))
	for name, ops := range backends(t) {
		if name != fast && name != "deferred" { // 36 layers for every token
			continue
		}
		net, err := text.OpenPart(ops, "qwen3vl_4b", set, nil, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		head, err := text.OpenHead(ops, set)
		if err != nil {
			t.Fatal(err)
		}
		for key, c := range file.Cases {
			d := text.Sampling{
				MaxTokens: c.Most, Greedy: !c.Sample, TopK: c.TopK, Temperature: c.Temperature, MinP: c.MinP, TopP: c.TopP,
				Repetition: c.Repetition, Presence: c.Presence, Seed: c.Seed,
			}
			if key != "greedy" && name != fast { // sampling is the same on all backends
				continue
			}
			got, err := net.(*text.LM).Generate(env(t, ops), head, chunk, text.Form{}, d)
			if err != nil || !slices.Equal(got, c.IDs) {
				t.Errorf("%s %s: got %v, %v, want %v", name, key, got, err, c.IDs)
			}
			if key != "greedy" {
				continue
			}
			d.Stop = c.IDs[2:3]
			got, err = net.(*text.LM).Generate(env(t, ops), head, chunk, text.Form{}, d)
			if err != nil || !slices.Equal(got, c.IDs[:3]) {
				t.Errorf("%s %s: got %v, %v, want the first three", name, key, got, err)
			}
		}
		_, err = net.(*text.LM).Generate(env(t, ops), head, []tokenizer.Token{{ID: 1 << 20}}, text.Form{},
			text.Sampling{MaxTokens: 1})
		if !errors.Is(err, text.ErrTokenizer) {
			t.Errorf("%s: got error %v for a token beyond the table", name, err)
		}
		head.Close()
		net.Close()
	}
}
