package pyregex

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestAsInPython compares with what CPython 3.11 made of the patterns of testdata/patterns.json, most of them random:
// the places of all matches and groups, the text with its matches replaced, and what is an error.
func TestAsInPython(t *testing.T) {
	data, err := os.ReadFile("testdata/patterns.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Pattern  string    `json:"p"`
		Flags    [3]bool   `json:"f"` // re.I, re.M, re.S
		Text     string    `json:"t"`
		Template string    `json:"tpl"`
		Count    int       `json:"n"`
		Matches  [][][]int `json:"m"`
		Replaced *string   `json:"s"` // nil: an error
		Err      string    `json:"err"`
	}
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	matched, refused := 0, 0
	for _, row := range rows {
		p, err := Compile(row.Pattern, Flags{IgnoreCase: row.Flags[0], MultiLine: row.Flags[1], DotAll: row.Flags[2]})
		if (err != nil) != (row.Err != "") || errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: got the error %v, want %q", row.Pattern, err, row.Err)
		}
		if err != nil {
			refused++
			continue
		}
		found, err := p.Find(t.Context(), row.Text, 0)
		var got [][][]int
		for _, m := range found {
			var one [][]int
			for i := 0; i < len(m.at); i += 2 {
				one = append(one, m.at[i:i+2])
			}
			got = append(got, one)
		}
		matched += min(1, len(got))
		if err != nil || len(got)+len(row.Matches) > 0 && !reflect.DeepEqual(got, row.Matches) {
			t.Errorf("%q %v in %q: got %v, %v, want %v", row.Pattern, row.Flags, row.Text, got, err, row.Matches)
		}
		s, err := p.Replace(t.Context(), row.Text, row.Template, row.Count, 1<<20)
		if (err != nil) != (row.Replaced == nil) || err == nil && s != *row.Replaced {
			t.Errorf("%q %v in %q by %q, %d times: got %q, %v", row.Pattern, row.Flags, row.Text, row.Template, row.Count, s,
				err)
		}
	}
	if matched < 500 || refused < 100 {
		t.Errorf("%d patterns match and %d are errors, want 500 and 100 at least", matched, refused)
	}
}

// TestLimits checks that a pattern that would need very long, much stack, much memory or a table of names is refused as
// such, and that canceling ends a search.
func TestLimits(t *testing.T) {
	many := strings.Repeat("a", 1<<18)
	for _, c := range []struct{ pattern, text, template string }{
		{"(a+)+b", many[:40], ""},
		{"(?:a|b)*c", many, ""},
		{strings.Repeat("(", maxNesting+1) + strings.Repeat(")", maxNesting+1), "", ""},
		{"a{4294967295}", "", ""},
		{`\N{DIGIT ONE}`, "1", ""},
		{"a", many, many[:1<<10]},
	} {
		p, err := Compile(c.pattern, Flags{})
		if err == nil {
			_, err = p.Replace(t.Context(), c.text, c.template, 0, 1<<20)
		}
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%.40q: got the error %v, want one of ErrUnsupported", c.pattern, err)
		}
	}
	p, err := Compile("(a+)+b", Flags{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Find(ctx, many[:40], 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled search: %v", err)
	}
	p, err = Compile("a*$|(?:ab?)*x", Flags{})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := p.Find(t.Context(), many[:1<<16], 0); err != nil || len(found) != 2 {
		t.Errorf("a long text: %d matches, %v, want 2", len(found), err)
	}
}
