package tokenizer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// copyTo copies files of testdata to paths in a new folder and returns the folder.
func copyTo(t *testing.T, names map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for from, to := range names {
		data, err := os.ReadFile(filepath.Join("testdata", from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, to), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOpenFolders(t *testing.T) {
	for kind, names := range map[string]map[string]string{
		"unigram":               {"demo_t5.tokenizer.json": "tokenizer.json", "tiny_unigram.model": "spiece.model"},
		"clip-bpe":              {"demo_clip.tokenizer.json": "tokenizer.json"},
		"sentencepiece-unigram": {"tiny_unigram.model": "spiece.model"},
		"sentencepiece-bpe":     {"tiny_bpe.model": "tokenizer.model"},
		"wordpiece":             {"tiny_bert.vocab.txt": "vocab.txt"},
		"qwen2-bpe": {
			"tiny_qwen/vocab.json": "vocab.json", "tiny_qwen/merges.txt": "merges.txt",
			"tiny_qwen/tokenizer_config.json": "tokenizer_config.json",
		},
	} {
		tok, err := Open(copyTo(t, names))
		if err != nil || tok.Kind != kind {
			t.Errorf("%v: %v, %v; want kind %s", names, tok, err, kind)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	halfQwen := copyTo(t, map[string]string{"tiny_qwen/vocab.json": "vocab.json"})
	if _, err := Open(halfQwen); err == nil || !strings.Contains(err.Error(), "merges.txt") {
		t.Errorf("vocab.json alone: error %v, want one that names merges.txt", err)
	}
	unknown := copyTo(t, map[string]string{"tiny_qwen/vocab.json": "vocab.json", "tiny_qwen/merges.txt": "merges.txt"})
	if _, err := Open(unknown); err == nil || !strings.Contains(err.Error(), "neither CLIP nor Qwen2") {
		t.Errorf("no tokenizer_config.json: error %v, want one that names the kinds", err)
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("empty folder: error %v, want fs.ErrNotExist", err)
	}
	broken := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(broken, []byte(`{"model": {"type": "WordLevel"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(broken); err == nil || !strings.Contains(err.Error(), "WordLevel") ||
		!strings.Contains(err.Error(), broken) {
		t.Errorf("unknown model: error %v, want one that names the type and the file", err)
	}
}

func TestFind(t *testing.T) {
	folder := filepath.Join("testdata", "tiny_qwen")
	absent := filepath.Join(t.TempDir(), "nowhere")
	tok, place, err := Find("Qwen", absent, folder, "testdata")
	if err != nil || place != folder || tok.Kind != "qwen2-bpe" {
		t.Errorf("got %v at %q, %v; want the one at %s", tok, place, err, folder)
	}
	empty := t.TempDir()
	_, _, err = Find("T5 (FLUX)", absent, empty)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("error %v, want fs.ErrNotExist", err)
	}
	for _, part := range []string{"T5 (FLUX)", absent, empty} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %q", err, part)
		}
	}
}

func TestFromBytesGuesses(t *testing.T) {
	for file, kind := range map[string]string{"demo_t5.tokenizer.json": "unigram", "tiny_bpe.model": "sentencepiece-bpe"} {
		data, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		if tok, err := FromBytes("mt5xl.spiece_model", data); err != nil || tok.Kind != kind {
			t.Errorf("%s: %v, %v; want kind %s", file, tok, err, kind)
		}
	}
}

func TestIDAndConcurrentUse(t *testing.T) {
	tok := demoT5(t)
	if id, ok := tok.ID("▁a"); !ok || id != 3 {
		t.Errorf("ID(▁a) = %d, %v; want 3", id, ok)
	}
	if _, ok := tok.ID("no such piece"); ok {
		t.Error("a piece that is not there was found")
	}
	want := tok.Encode("a big red heart")
	done := make(chan []int)
	for range 4 {
		go func() { done <- tok.Encode("a big red heart") }()
	}
	for range 4 {
		if got := <-done; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}
