package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestProofsNameTests: every test filter of a `go test` command in docs/status.md and docs/requirements.md, and every
// test that they name, is there: a filter that matches nothing passes and proves nothing.
func TestProofsNameTests(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)`)
	testsIn := func(folder string, below bool) (names []string) {
		err := filepath.WalkDir(filepath.Join("..", folder), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() && !below && path != filepath.Join("..", folder) {
				if err == nil {
					err = filepath.SkipDir
				}
				return err
			}
			if strings.HasSuffix(path, "_test.go") {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
					names = append(names, m[1])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	everywhere := map[string]bool{}
	for _, n := range testsIn("", true) {
		everywhere[n] = true
	}
	command, filter := regexp.MustCompile("`go test ([^`]*)`"), regexp.MustCompile(`-run '?([^' ]+)'?`)
	seen := 0
	for _, doc := range []string{"../docs/status.md", "../docs/requirements.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
			if !everywhere[n] {
				t.Errorf("%s names %s, which is not there", doc, n)
			}
		}
		for _, c := range command.FindAllStringSubmatch(string(text), -1) {
			run := filter.FindStringSubmatch(c[1])
			if run == nil {
				continue
			}
			var names []string
			for _, word := range strings.Fields(c[1]) {
				if folder, ok := strings.CutPrefix(word, "."); ok {
					dir, deep := strings.CutSuffix(folder, "...")
					names = append(names, testsIn(strings.Trim(dir, "/"), deep)...)
				}
			}
			for _, part := range strings.Split(strings.ReplaceAll(run[1], `\|`, "|"), "|") {
				top, _, _ := strings.Cut(part, "/")
				re, err := regexp.Compile(top)
				if err != nil {
					t.Fatalf("%s: %s: %v", doc, c[0], err)
				}
				seen++
				if !re.MatchString(strings.Join(names, "\n")) {
					t.Errorf("%s: in %s no test matches %s", doc, c[0], top)
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("%d filters were looked at, want 50 or more: the pages have another form", seen)
	}
}
