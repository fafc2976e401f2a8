package tokenizer

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func demoCLIP(tb testing.TB) *Tokenizer {
	tb.Helper()
	t, err := Open(filepath.Join("testdata", "demo_clip.tokenizer.json"))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func demoT5(tb testing.TB) *Tokenizer {
	tb.Helper()
	t, err := Open(filepath.Join("testdata", "demo_t5.tokenizer.json"))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func TestSegmentsNumbers(t *testing.T) {
	for text, want := range map[string]float64{
		"(a: 1.5 )": 1.5, "(a:1_0.5)": 10.5, "(a:１.５)": 1.5, "(a:٣)": 3, "(a:1e1)": 10, "(a:.5)": .5, "(a:+2.)": 2,
		"(a:0x10)": 1.1, "(a:1__0)": 1.1, "(a:_1)": 1.1, "(a:1_)": 1.1, "(a:)": 1.1, "(a:b:2)": 2,
	} {
		got, err := Segments(text)
		if err != nil || len(got) != 1 || got[0].Weight != want {
			t.Errorf("%q: %v, %v; want one segment of weight %v", text, got, err, want)
		}
	}
	for _, text := range []string{"(a:nan)", "(a:inf)", "(a:-Infinity)", "(a:1e999)"} {
		if got, err := Segments(text); err == nil || !strings.Contains(err.Error(), "finite") {
			t.Errorf("%q: %v, %v; want an error about finite numbers", text, got, err)
		}
	}
	deep := strings.Repeat("(", 600) + "a" + strings.Repeat(")", 600)
	if _, err := Segments(deep); err == nil || !strings.Contains(err.Error(), "nested") {
		t.Errorf("600 parentheses: error %v, want one about nesting", err)
	}
}

func TestPromptEmbeddings(t *testing.T) {
	clip := demoCLIP(t)
	lookup := func(name string) ([][]float32, error) {
		switch name {
		case "two":
			return [][]float32{{1}, {2}}, nil
		case "broken":
			return nil, errors.New("cut off")
		}
		return nil, nil
	}
	got, err := CLIPL().Prompt(clip, "red (embedding:two, heart:1.5) embedding:none green", lookup)
	if err != nil {
		t.Fatal(err)
	}
	red, comma, heart, green := clip.Encode("red"), clip.Encode(","), clip.Encode("heart"), clip.Encode("green")
	want := append(append([]int{819}, red...), None, None)
	want = append(append(append(want, comma...), heart...), green...)
	var ids []int
	for _, token := range got.Chunks[0][:len(want)] {
		ids = append(ids, token.ID)
	}
	if i := firstDifference(ids, want); i >= 0 {
		t.Fatalf("first bad index %d: got %v, want %v", i, ids, want)
	}
	first := got.Chunks[0][1+len(red)]
	if first.Vector == nil || first.Vector[0] != 1 || first.Weight != 1.5 {
		t.Errorf("first vector is %+v, want [1] with weight 1.5", first)
	}
	if len(got.Missing) != 1 || got.Missing[0] != "none" {
		t.Errorf("missing %q, want none", got.Missing)
	}
	if !got.Weighted() {
		t.Error("the prompt has weights")
	}
	for text, part := range map[string]string{
		"embedding:broken": "cut off", "a embedding:": "name of an embedding",
		"embedding: \t": "name of an embedding",
	} {
		if _, err := CLIPL().Prompt(clip, text, lookup); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: error %v, want one with %q", text, err, part)
		}
	}
}

// lengths returns the number of tokens of each chunk.
func lengths(p Prompt) (n []int) {
	for _, c := range p.Chunks {
		n = append(n, len(c))
	}
	return n
}

func TestPromptChunks(t *testing.T) {
	layout := Layout{Key: "x", MaxLength: 8, Start: 90, End: 91, Pad: 92, Fill: true}
	group := func(n, id int) (g []Token) {
		for range n {
			g = append(g, Token{ID: id, Weight: 1})
		}
		return g
	}
	ids := func(chunks [][]Token) (all []int) {
		for _, c := range chunks {
			for _, token := range c {
				all = append(all, token.ID)
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		groups [][]Token
		want   []int
	}{
		"empty": {nil, []int{90, 91, 92, 92, 92, 92, 92, 92}},
		"short group moves on": {
			[][]Token{group(4, 1), group(3, 2)},
			[]int{90, 1, 1, 1, 1, 91, 92, 92, 90, 2, 2, 2, 91, 92, 92, 92},
		},
		"long group is broken": {
			[][]Token{group(4, 1), group(8, 2)},
			[]int{90, 1, 1, 1, 1, 2, 2, 91, 90, 2, 2, 2, 2, 2, 2, 91},
		},
		"group above any chunk": {[][]Token{group(7, 3)}, []int{90, 3, 3, 3, 3, 3, 3, 91, 90, 3, 91, 92, 92, 92, 92, 92}},
		"exactly full":          {[][]Token{group(6, 1)}, []int{90, 1, 1, 1, 1, 1, 1, 91}},
		"full, then one": {
			[][]Token{group(6, 1), group(1, 2)},
			[]int{90, 1, 1, 1, 1, 1, 1, 91, 90, 2, 91, 92, 92, 92, 92, 92},
		},
		"break at an empty rest": {
			[][]Token{group(6, 1), group(9, 2)},
			[]int{90, 1, 1, 1, 1, 1, 1, 91, 90, 2, 2, 2, 2, 2, 2, 91, 90, 2, 2, 2, 91, 92, 92, 92},
		},
	} {
		if got := ids(layout.chunk(c.groups)); firstDifference(got, c.want) >= 0 {
			t.Errorf("%s:\n got %v\nwant %v", name, got, c.want)
		}
	}
}

func TestPromptLengthsAndEmpty(t *testing.T) {
	t5 := demoT5(t)
	for _, c := range []struct {
		options map[string]int
		want    int
	}{{nil, 256}, {
		map[string]int{"t5xxl_min_length": 300},
		300,
	}, {map[string]int{"t5xxl_min_length": 1, "t5xxl_min_padding": 5}, 8}} {
		got, err := t5Flux().WithOptions(c.options).Prompt(t5, "a heart", nil)
		if err != nil || len(got.Chunks) != 1 || len(got.Chunks[0]) != c.want {
			t.Errorf("%v: lengths %v, %v; want %d", c.options, lengths(got), err, c.want)
		}
	}
	for name, layout := range map[string]Layout{
		"no room":      {MaxLength: 2, Start: 1, End: 2},
		"no pad":       {MaxLength: 9, Start: None, End: None, Pad: FromVocabulary},
		"huge minimum": {MaxLength: 9, Start: None, End: None, MinLength: 1 << 40},
		"huge fill":    {MaxLength: 1 << 40, Start: None, End: None, Fill: true},
	} {
		if _, err := layout.Prompt(t5, "a", nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, config := range []string{`{"max_length": 0}`, `{"min_length": 99999999}`, `{"eos_token_id": -1}`, `[`} {
		if _, err := t5Flux().WithConfig([]byte(config)); err == nil {
			t.Errorf("config %s: no error", config)
		}
	}
	if _, err := t5Flux().Prompt(t5, strings.Repeat("a", longestPrompt+1), nil); err == nil {
		t.Error("a prompt above the limit was accepted")
	}
}
