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

var update = flag.Bool("update", false, "write the list of node classes in docs/comfyui.md")

// nodeTable lists the classes of the catalogue by the first word of their category, those of models by the second, too.
// nodeList returns the list of node classes by category, in lines of at most 120 characters.
func nodeList(t *testing.T) string {
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
	for _, g := range names {
		slices.Sort(groups[g])
		line := "- **" + g + "**:"
		for i, name := range groups[g] {
			if i < len(groups[g])-1 {
				name += ","
			}
			if len(line)+1+len(name) > 120 {
				b.WriteString(line + "\n")
				line = " "
			}
			line += " " + name
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// TestDocsListTheCatalogue keeps the list of node classes in docs/comfyui.md equal to the catalogue: go test ./tests
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
		t.Fatal("docs/comfyui.md has no markers for the list of nodes")
	}
	want := head + "<!-- nodes -->\n" + nodeList(t) + "<!-- /nodes -->" + tail
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatal("the list in docs/comfyui.md is not that of the catalogue: run go test ./tests -run Catalogue -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
