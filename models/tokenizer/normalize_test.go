package tokenizer

import (
	"strings"
	"testing"
)

func TestNormalizers(t *testing.T) {
	for _, c := range []struct{ rule, text, want string }{
		{`{"type":"NFKC"}`, "ﬁ½", "fi1⁄2"},
		{`{"type":"NFC"}`, "e\u0301", "é"},
		{`{"type":"NFD"}`, "é", "e\u0301"},
		{`{"type":"Lowercase"}`, "ÀΣİ", "àσi\u0307"},
		{`{"type":"StripAccents"}`, "crème", "creme"},
		{`{"type":"Strip","strip_left":false,"strip_right":true}`, "  a\u3000\n", "  a"},
		{`{"type":"Replace","pattern":{"Regex":" {2,}"},"content":"▁"}`, "a   b c", "a▁b c"},
		{`{"type":"Replace","pattern":{"String":"a"},"content":"$0"}`, "aba", "$0b$0"},
		{`{"type":"Prepend","prepend":"▁"}`, "x", "▁x"},
		{`{"type":"Sequence","normalizers":[{"type":"Lowercase"},null,{"type":"Strip"}]}`, " A ", "a"},
	} {
		n, err := parseNormalizer([]byte(c.rule), 0)
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		if got := n(c.text); got != c.want {
			t.Errorf("%s: %q became %q, want %q", c.rule, c.text, got, c.want)
		}
	}
	for rule, part := range map[string]string{
		`{"type":"Nmt"}`: "known are",
		`{"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "}`:                       "not supported",
		`{"type":"Replace","pattern":{"Regex":"("},"content":" "}`:                          "Replace",
		`{"type":"Replace","content":" "}`:                                                  "non-empty",
		`{"type":"Precompiled","precompiled_charsmap":"/////w=="}`:                          "trie of",
		strings.Repeat(`{"type":"Sequence","normalizers":[`, 20) + strings.Repeat("]}", 20): "nested",
	} {
		if _, err := parseNormalizer([]byte(rule), 0); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%.60s: error %v, want one with %q", rule, err, part)
		}
	}
}

func TestLowerText(t *testing.T) {
	for text, want := range map[string]string{
		"ΟΔΟΣ": "οδος", "Σ": "σ", "ΑΣ.": "ας.", "ΑΣ'Β": "ασ'β", "ΣΑ": "σα",
		"İI": "i\u0307i", "ǅ": "ǆ", "ẞ": "ß",
	} {
		if got := lowerText(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestAddedTokens(t *testing.T) {
	lower := strings.ToLower
	a, err := newAddedTokens([]addedToken{
		{ID: 1, Content: "<a>"},
		{ID: 2, Content: "<a><b>"},
		{ID: 3, Content: "<l>", LStrip: true},
		{ID: 4, Content: "<r>", RStrip: true},
		{ID: 5, Content: "word", SingleWord: true},
		{ID: 6, Content: "<N>", Normalized: true},
		{ID: 7, Content: ""},
	}, lower)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                 "",
		"x<a><b><a>Y":      "^x|2|1|y",
		"x  <l> y":         "^x|3| y",
		"x <r>  y":         "^x |4|y",
		"words word sword": "^words |5| sword",
		"A<n>B<N>c":        "^a|6|b|6|c",
		"<a>":              "1",
	} {
		var parts []string
		m := modelFunc(func(text string, atStart bool, ids []int) []int {
			if atStart {
				text = "^" + text
			}
			return append(ids, 1000+len(addPart(&parts, text)))
		})
		var got []string
		for _, id := range a.encode(text, m, nil) {
			if id > 1000 {
				got = append(got, parts[id-1001])
			} else {
				got = append(got, string(rune('0'+id)))
			}
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%q: %q, want %q", text, strings.Join(got, "|"), want)
		}
	}
}

// modelFunc is a vocabulary that calls a function.
type modelFunc func(text string, atStart bool, ids []int) []int

func (f modelFunc) encode(text string, atStart bool, ids []int) []int { return f(text, atStart, ids) }

func addPart(parts *[]string, text string) []string {
	*parts = append(*parts, text)
	return *parts
}
