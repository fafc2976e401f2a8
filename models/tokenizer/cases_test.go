package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestOriginalPrograms compares all kinds with the output of the original programs (testdata/make_cases.py).
func TestOriginalPrograms(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string][]json.RawMessage
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string]string{
		"demo_clip.tokenizer.json": "clip-bpe", "demo_t5.tokenizer.json": "unigram", "tiny_qwen": "qwen2-bpe",
		"tiny_bert.vocab.txt": "wordpiece", "tiny_unigram.model": "sentencepiece-unigram",
		"tiny_bpe.model": "sentencepiece-bpe",
	} {
		t.Run(name, func(t *testing.T) {
			tok, err := Open(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			if tok.Kind != kind {
				t.Errorf("kind %s, want %s", tok.Kind, kind)
			}
			if len(cases[name]) < 100 {
				t.Fatalf("%d cases, want at least 100", len(cases[name]))
			}
			for _, c := range cases[name] {
				var text string
				var want []int
				if err := json.Unmarshal(c, &[2]any{&text, &want}); err != nil {
					t.Fatal(err)
				}
				got := tok.EncodeWithEnds(text)
				if i := firstDifference(got, want); i >= 0 {
					t.Errorf("%+q: first bad index %d\n got %v\nwant %v", text, i, got, want)
				}
			}
		})
	}
}
