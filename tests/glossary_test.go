package tests

import (
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// nouns returns the glossary of ARCHITECTURE.md: the packages that define each noun.
func nouns(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| ([a-z]+) \\| (`[^|]*`) \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if out[m[1]] != nil {
			t.Errorf("%s has two meanings", m[1])
		}
		for _, name := range strings.Split(m[2], ",") {
			out[m[1]] = append(out[m[1]], strings.Trim(name, " `"))
		}
	}
	return out
}

// sameNoun lists types that are called like a noun of the glossary in another package and mean the same: what a layer
// below or above sees of it.
func sameNoun() map[string]string {
	return map[string]string{
		"models/dit.Entry": "what the network sees of one", "node/graph.Job": "what the runner gets of one",
		"node/graph.Event": "what the runner says of one", "node/graph.handles": "the worker's store of them",
		"node/editor.node": "in the editor's format", "node/editor.link": "in the editor's format",
		"parallel/remote.Process":       "one in another process",
		"parallel.Processes":            "those that a pool's ranks run in",
		"parallel/comm/deferred.group":  "the state that its ends share",
		"parallel/comm/localcuda.group": "the state that its ends share", "engine/deferred.Event": "CUDA's word",
		"models/control.Patch": "a model patch", "models/dit.Patch": "a model patch", "models/family.Patch": "a model patch",
		"node/value.Patch": "a model patch",
	}
}

// otherMeanings returns the types that are called like a noun and are defined in none of its packages.
func otherMeanings(nouns map[string][]string, types map[string]string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(types)) {
		dir, word := types[name], strings.ToLower(name[strings.LastIndexByte(name, '.')+1:])
		for _, noun := range []string{word, strings.TrimSuffix(word, "s"), strings.TrimSuffix(word, "es")} {
			if packages := nouns[noun]; packages != nil && !slices.Contains(packages, dir) && sameNoun()[name] == "" {
				out = append(out, name)
				break
			}
		}
	}
	return out
}

// TestGlossary checks that the glossary has at most 25 nouns, each defined in packages that exist, and that no type
// elsewhere is called like one of them.
func TestGlossary(t *testing.T) {
	words, types := nouns(t), map[string]string{}
	if n := len(words); n < 20 || n > 25 {
		t.Errorf("the glossary has %d nouns, want 20 to 25", n)
	}
	folders := map[string]bool{}
	for _, f := range parse(t) {
		if f.test || layerOf(f.dir) < 0 || testOnly(f.dir) && f.dir != "engine/deferred" {
			continue
		}
		folders[f.dir] = true
		for _, d := range f.syntax.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				for _, s := range g.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						types[f.dir+"."+s.Name.Name] = f.dir
					}
				}
			}
		}
	}
	for noun, packages := range words {
		for _, p := range packages {
			if !folders[p] {
				t.Errorf("%s is defined in %s, which is no package", noun, p)
			}
		}
	}
	for _, name := range otherMeanings(words, types) {
		t.Errorf("%s is called like a noun of the glossary that another package defines", name)
	}
	for name := range sameNoun() {
		if types[name] == "" {
			t.Errorf("there is no type %s", name)
		}
	}
	if bad := otherMeanings(words, map[string]string{"ipc/serve.Hosts": "ipc/serve"}); len(bad) != 1 {
		t.Errorf("a second meaning of host was not found: %v", bad)
	}
}
