package pyjson

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode"
)

// TestCasesAsInPython compares with what CPython 3.11 made of the texts of testdata/cases.json: upper, lower, title,
// capitalize, strip, lstrip and rstrip. They hold every character that becomes several, the final sigma, and what
// Python counts as white space.
func TestCasesAsInPython(t *testing.T) {
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 700 {
		t.Fatalf("%d texts, want 700 at least", len(rows))
	}
	for _, row := range rows {
		s := row[0]
		for i, got := range []string{
			Upper(s), Lower(s), Titled(s), Capitalized(s), strings.TrimFunc(s, IsSpace),
			strings.TrimLeftFunc(s, IsSpace), strings.TrimRightFunc(s, IsSpace),
		} {
			if got != row[i+1] {
				t.Errorf("%q: number %d is %q, want %q", s, i, got, row[i+1])
			}
		}
	}
	if n, err := Int("\x1c7\x1f"); n != int64(7) || err != nil {
		t.Errorf("a number between separators: %v, %v, want 7", n, err)
	}
	if unicode.IsSpace(0x1c) {
		t.Error("Go counts U+001C as white space: IsSpace can be simpler")
	}
}
