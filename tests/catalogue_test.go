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
	"patchbay/tests/harness"
)

var update = flag.Bool("update", false, "write the table of node classes in docs/comfyui.md")

// nodeTable lists the classes of the catalogue by the first word of their category, those of models by the second, too.
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
		words := strings.Split(text, "/")
		if words[0] != "model" {
			words = words[:1]
		}
		group := strings.Join(words[:min(len(words), 2)], "/")
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

// TestDocsListTheCatalogue keeps the table of node classes in docs/comfyui.md equal to the catalogue: go test ./tests
// -run Catalogue -update writes it.
func TestDocsListTheCatalogue(t *testing.T) {
	path := filepath.Join(harness.Root(t), "docs", "comfyui.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(text), "<!-- nodes -->\n")
	_, tail, ok2 := strings.Cut(rest, "<!-- /nodes -->")
	if !ok1 || !ok2 {
		t.Fatal("docs/comfyui.md has no markers for the table of nodes")
	}
	want := head + "<!-- nodes -->\n" + nodeTable(t) + "<!-- /nodes -->" + tail
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatal("the table in docs/comfyui.md is not that of the catalogue: run go test ./tests -run Catalogue -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
