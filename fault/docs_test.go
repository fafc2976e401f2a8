package fault

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// constants returns the values of the constants of codes.go.
func constants(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
			code, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, code)
		}
		return true
	})
	return out
}

// TestErrorsPage compares docs/errors.md with the code: each code that there is has one row, which says what the table
// says, and something to do.
func TestErrorsPage(t *testing.T) {
	page, err := os.ReadFile("../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	codes := constants(t)
	if len(codes) < 50 {
		t.Fatalf("%d constants were found in codes.go", len(codes))
	}
	if known := slices.Sorted(maps.Keys(table)); !slices.Equal(known, slices.Sorted(slices.Values(codes))) {
		t.Errorf("the table has %v, the constants are %v", known, codes)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || strings.HasPrefix(cells[0], "---") || strings.HasPrefix(cells[0], " code") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		row, ok := table[cells[0]]
		switch as := strconv.Itoa(row.Status); {
		case !ok:
			t.Errorf("%s is no code", cells[0])
		case seen[row.Code]:
			t.Errorf("%s has two rows", row.Code)
		default:
			if row.Public != row.Code {
				as = fmt.Sprintf("%s %s", row.Public, as)
			}
			if row.Retryable {
				as += ", retryable"
			}
			if cells[1] != as || cells[2] != row.When {
				t.Errorf("%s: the page says %q and %q, the table %q and %q", row.Code, cells[1], cells[2], as, row.When)
			}
			if len(cells[3]) < 10 {
				t.Errorf("%s: the page does not say what to do", row.Code)
			}
		}
		seen[cells[0]] = true
	}
	for _, code := range codes {
		if !seen[code] {
			t.Errorf("docs/errors.md lacks %s", code)
		}
	}
}
