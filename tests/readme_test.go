package tests

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

var update = flag.Bool("update", false, "write the generated parts of README.md")

// nodeTable lists the classes of the catalogue by the first word of their category.
func nodeTable(t *testing.T) string {
	t.Helper()
	cat := classes.All()
	groups := map[string][]string{}
	for _, name := range cat.Classes() {
		info, ok := cat.ObjectInfo(files.Roots{}, name)[name].(*pyjson.Object)
		if !ok {
			t.Fatalf("no object_info of %s", name)
		}
		category, _ := info.Get("category")
		text, _ := category.(string)
		group, _, _ := strings.Cut(text, "/")
		groups[group] = append(groups[group], name)
	}
	names := make([]string, 0, len(groups))
	for g := range groups {
		names = append(names, g)
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| category | node classes |\n|---|---|\n")
	for _, g := range names {
		slices.Sort(groups[g])
		b.WriteString("| " + g + " | " + strings.Join(groups[g], ", ") + " |\n")
	}
	return b.String()
}

// TestReadmeListsTheCatalogue keeps the table of node classes in README.md equal to the catalogue: go test ./tests -run
// Readme -update writes it.
func TestReadmeListsTheCatalogue(t *testing.T) {
	path := filepath.Join(root(t), "README.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(text), "<!-- nodes -->\n")
	_, tail, ok2 := strings.Cut(rest, "<!-- /nodes -->")
	if !ok1 || !ok2 {
		t.Fatal("README.md has no markers for the table of nodes")
	}
	want := head + "<!-- nodes -->\n" + nodeTable(t) + "<!-- /nodes -->" + tail
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatal("the table of nodes in README.md is not that of the catalogue: run go test ./tests -run Readme -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
