package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestDemoVocabularies compares ids with those recorded by the training pipeline, which used the tokenizers library.
// The demo's vocabularies were trained for this project.
func TestDemoVocabularies(t *testing.T) {
	t5, err := Open(filepath.Join("testdata", "demo_t5.tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	clip, err := Open(filepath.Join("testdata", "demo_clip.tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	t5Layout, err := t5Flux().WithConfig([]byte(`{"max_length": 20, "min_length": 20, "pad_token_id": 0, ` +
		`"eos_token_id": 1, "vocab_size": 334}`))
	if err != nil {
		t.Fatal(err)
	}
	clipLayout, err := CLIPL().WithConfig([]byte(`{"max_length": 77, "bos_token_id": 819, "eos_token_id": 820, ` +
		`"pad_token_id": 820}`))
	if err != nil {
		t.Fatal(err)
	}
	if t5.Size != 334 || clip.Size != 821 {
		t.Errorf("sizes %d and %d, want 334 and 821", t5.Size, clip.Size)
	}
	for _, c := range demoCases(t) {
		for len(c.CLIP) < 77 {
			c.CLIP = append(c.CLIP, 820)
		}
		got, err := t5Layout.Prompt(t5, c.Prompt, nil)
		if err := comparePrompt(got, err, goldenTokens{IDs: [][]int{c.T5}}); err != nil {
			t.Errorf("t5 %q: %v", c.Prompt, err)
		}
		got, err = clipLayout.Prompt(clip, c.Prompt, nil)
		if err := comparePrompt(got, err, goldenTokens{IDs: [][]int{c.CLIP}}); err != nil {
			t.Errorf("clip %q: %v", c.Prompt, err)
		}
	}
	// Longer prompts are cut to 19 tokens and </s>, as in training.
	got, err := t5Layout.Prompt(t5, "a red heart and a red heart and a red heart and a red heart and a red heart and "+
		"a red heart and a red heart", nil)
	if err != nil || len(got.Chunks) != 1 || len(got.Chunks[0]) != 20 || got.Chunks[0][19].ID != 1 ||
		got.Chunks[0][18].ID == 1 {
		t.Errorf("long prompt: %v, %v; want one chunk of 20 tokens that ends in </s>", got, err)
	}
}

type demoCase struct {
	Prompt string `json:"prompt"`
	T5     []int  `json:"t5_ids"`
	CLIP   []int  `json:"clip_ids"`
}

func demoCases(t *testing.T) (cases []demoCase) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "demo_ids.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 3 {
		t.Fatalf("%d demo cases, want at least 3", len(cases))
	}
	return cases
}
