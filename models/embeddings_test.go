package models_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/models"
	"patchbay/models/tokenizer"
	"patchbay/tests/golden"
)

// readers are the layouts under test by the name of the record: type and kind of the encoder, and its vocabulary.
var readers = map[string][3]string{
	"clip_l": {"flux", "clip_l", "clip"}, "clip_g": {"sd3", "clip_g", "clip"}, "t5xxl": {"pixart", "t5", "t5"},
	"z_image": {"lumina2", "qwen3", "qwen2.5"}, "qwen_image": {"qwen_image", "qwen25_7b", "qwen2.5"},
	"klein": {"flux2", "qwen3", "qwen2.5"}, "klein8": {"flux2", "qwen3_8b", "qwen2.5"},
	"krea2": {"krea2", "qwen3vl_4b", "qwen2.5"}, "mistral3": {"flux2", "mistral3", "tekken"},
	"gemma2": {"lumina2", "gemma2_2b", "gemma"},
}

// vocabularies opens the small vocabularies of the repository and, if they are there, the public ones.
func vocabularies(t *testing.T) map[string]*tokenizer.Tokenizer {
	t.Helper()
	var tokens map[string]json.RawMessage
	var synthetic struct{ JSON string }
	out := map[string]*tokenizer.Tokenizer{}
	err := golden.JSON("modern/tokens.json", &tokens)
	if err == nil {
		err = json.Unmarshal(tokens["tekken_synthetic"], &synthetic)
	}
	if err == nil {
		out["tekken"], err = tokenizer.FromBytes("tekken.json", []byte(synthetic.JSON))
	}
	if err == nil {
		out["gemma"], err = tokenizer.Open(filepath.Join("tokenizer", "testdata", "tiny_bpe.model"))
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := os.Getenv("PATCHBAY_TEST_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "tokenizers")
	}
	for _, name := range []string{"clip", "t5", "qwen2.5"} {
		v, place, err := tokenizer.Find(name, filepath.Join(dir, name))
		switch {
		case err == nil:
			out[name] = v
		case place == "":
			t.Logf("NOT RUN: %v", err)
		default:
			t.Fatal(err)
		}
	}
	return out
}

// rows is a folder of embeddings: the number of rows of each.
func rows(known map[string]int) tokenizer.Embedding {
	return func(name string) ([][]float32, error) {
		if known[name] == 0 {
			return nil, nil
		}
		return slices.Repeat([][]float32{{1}}, known[name]), nil
	}
}

// TestEmbeddingsInPrompts compares the layouts of all families with ComfyUI 0.33.0's tokenizers for prompts with
// embedding:name: which of them look for it, what ends a name, and what stays where a file is missing.
func TestEmbeddingsInPrompts(t *testing.T) {
	var cases map[string]map[string]json.RawMessage
	if err := golden.JSON("modern33/tokens_embedding.json", &cases); err != nil {
		t.Fatal(err)
	}
	words, types, ran := vocabularies(t), models.TextTypes(), 0
	prompt := func(reader, text string, known map[string]int) (tokenizer.Prompt, bool, error) {
		r, ok := readers[reader]
		v := words[r[2]]
		if !ok || v == nil {
			return tokenizer.Prompt{}, false, nil
		}
		typ := types[r[0]]
		e, found := typ.Encoder(r[1])
		if !found {
			t.Fatalf("no encoder %s of %s", r[1], r[0])
		}
		if ran++; reader == "gemma2" {
			e.Layout.Start = 1 // of the small vocabulary
		}
		p, err := e.Layout.Prompt(v, text, rows(known))
		return p, true, err
	}
	for key, c := range cases {
		var text string
		if err := json.Unmarshal(c["prompt"], &text); err != nil {
			t.Fatal(err)
		}
		for name, recorded := range c {
			if reader, state, ok := strings.Cut(name, "/"); ok {
				stem := map[string]string{"qwen_image": "q7", "clip_l": "cl"}[reader]
				if stem == "" {
					stem = "q4"
				}
				known := map[string]int{}
				if known[stem] = 2; state == "missing" {
					stem, known = "foo", nil
				}
				var want []any
				if err := json.Unmarshal(recorded, &want); err != nil {
					t.Fatal(err)
				}
				got, ran, err := prompt(reader, strings.ReplaceAll(text, "NAME", stem), known)
				if !ran {
					continue
				}
				if err != nil || len(got.Chunks) != 1 || len(got.Chunks[0]) < len(want) || !sameIDs(got.Chunks[0], want) {
					t.Errorf("%s %s: got %v, error %v, want %v", key, name, got.Chunks, err, want)
				}
			}
		}
		if !strings.HasPrefix(key, "grid/") {
			continue
		}
		for reader := range readers {
			var want struct {
				Raises  string
				IDs     [][]any
				Lengths []int
				Weights [][]float32
			}
			if err := json.Unmarshal(c[reader], &want); err != nil {
				t.Fatalf("%s %s: %v", key, reader, err)
			}
			got, ran, err := prompt(reader, text, map[string]int{
				"two": 2, "two.safetensors": 2, "sub/deep": 1, "sub/deep.safetensors": 1, "deep": 1, "a,b": 1,
			})
			if !ran {
				continue
			}
			if (err != nil) != (want.Raises != "") || len(got.Chunks) != len(want.IDs) {
				t.Errorf("%s %s %q: %d chunks, error %v, want %d, exception %q", key, reader, text, len(got.Chunks), err,
					len(want.IDs), want.Raises)
				continue
			}
			for i, chunk := range got.Chunks {
				if len(chunk) != want.Lengths[i] || !sameIDs(chunk, want.IDs[i]) {
					t.Errorf("%s %s %q: chunk %d of %d tokens %v, want %d: %v", key, reader, text, i, len(chunk), chunk,
						want.Lengths[i], want.IDs[i])
				}
				for k := range min(len(chunk), len(want.IDs[i])) {
					weight := float32(1)
					if want.Weights != nil {
						weight = want.Weights[i][k]
					}
					if chunk[k].Weight != weight {
						t.Errorf("%s %s %q: weight %d is %v, want %v", key, reader, text, k, chunk[k].Weight, weight)
					}
				}
			}
		}
	}
	if ran < 2*38 {
		t.Errorf("%d prompts ran, want those of the two vocabularies of the repository at least", ran)
	}
}

// sameIDs reports whether a chunk begins with ids, in which a text stands for a row of an embedding, and goes on with
// pads, which all equal the last of these or each other.
func sameIDs(chunk []tokenizer.Token, ids []any) bool {
	for i, id := range ids {
		n, number := id.(float64)
		if number != (chunk[i].Vector == nil) || number && chunk[i].ID != int(n) {
			return false
		}
	}
	for _, t := range chunk[len(ids):] {
		if t.Vector != nil || t.ID != chunk[len(chunk)-1].ID {
			return false
		}
	}
	return true
}
