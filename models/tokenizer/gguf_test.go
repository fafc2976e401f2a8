package tokenizer

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ggufWords returns the GGUF metadata that llama.cpp's converter writes for a SentencePiece model, with a padded table.
func ggufWords(t *testing.T, path string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := parseSPModel(data)
	if err != nil {
		t.Fatal(err)
	}
	var scores []float32
	var kinds []int32
	var pieces []string
	for _, p := range m.pieces {
		pieces, scores, kinds = append(pieces, p.piece), append(scores, float32(p.score)), append(kinds, int32(p.kind))
	}
	pieces = append(pieces, "[PAD7]", "[PAD7]") // converters may repeat padding pieces
	scores, kinds = append(scores, -10000, -10000), append(kinds, pieceUnused, pieceUnused)
	return map[string]any{
		"tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.scores": scores,
		"tokenizer.ggml.token_type":           kinds,
		"tokenizer.ggml.precompiled_charsmap": m.charsmap, "tokenizer.ggml.add_space_prefix": m.dummyPrefix,
		"tokenizer.ggml.remove_extra_whitespaces": m.dropSpaces,
	}
}

// TestFromGGUFEqualsTheOriginalProgram compares with SentencePiece's output for the model that the metadata was made
// from.
func TestFromGGUFEqualsTheOriginalProgram(t *testing.T) {
	const name = "tiny_unigram.model"
	tok, err := FromGGUF(ggufWords(t, filepath.Join("testdata", name)))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join("testdata", "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string][]json.RawMessage
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
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
}

func TestFromGGUFRefusesWithReasons(t *testing.T) {
	good := ggufWords(t, filepath.Join("testdata", "tiny_unigram.model"))
	for _, other := range []map[string]any{nil, {}, {"tokenizer.ggml.model": "gpt2"}, {"tokenizer.ggml.model": 5}} {
		if tok, err := FromGGUF(other); tok != nil || err != nil {
			t.Errorf("%v: got %v, %v; want nothing, so that the caller looks elsewhere", other, tok, err)
		}
	}
	with := func(key string, v any) map[string]any {
		m := maps.Clone(good)
		m["tokenizer.ggml."+key] = v
		return m
	}
	n := len(good["tokenizer.ggml.tokens"].([]string))
	scores, kinds := make([]float32, n), make([]int32, n)
	kinds[3] = 9
	for _, c := range []struct {
		words map[string]any
		want  string
	}{
		{with("tokens", nil), "as many of both"},
		{with("tokens", []string{}), "as many of both"},
		{with("scores", scores[1:]), "as many of both"},
		{with("token_type", kinds[1:]), "numbers"},
		{with("token_type", nil), "numbers"},
		{with("token_type", kinds), "has type 0"},
		{with("tokens", make([]string, n)), "UTF-8"},
		{with("add_space_prefix", "yes"), "boolean"},
		{with("precompiled_charsmap", "x"), "list of bytes"},
		{with("precompiled_charsmap", []uint8{1, 2, 3}), "charsmap"},
	} {
		if _, err := FromGGUF(c.words); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one with %q", err, c.want)
		}
	}
}
