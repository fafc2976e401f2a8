package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"patchbay/tests/harness"
)

// TestPackageCommentsNameFilesThatExist checks that the files that package comments name, to say in which order to read
// a folder, are in that folder. Names with a folder are ignored.
func TestPackageCommentsNameFilesThatExist(t *testing.T) {
	name := regexp.MustCompile(`(^|[\s(,])([a-z0-9_]+\.go)\b`)
	named := 0
	for _, f := range parse(t) {
		if f.syntax.Doc == nil {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(f.syntax.Doc.Text(), -1) {
			named++
			if _, err := os.Stat(filepath.Join(harness.Root(t), f.dir, m[2])); err != nil {
				t.Errorf("%s: the package comment names %s, which is not in %s", f.path, m[2], f.dir)
			}
		}
	}
	if named < 50 {
		t.Errorf("found %d names of files, want 50 or more", named)
	}
}

// TestLinesAreShort checks that no line of Python or of a shell script has more than 120 characters; the linter checks
// Go.
func TestLinesAreShort(t *testing.T) {
	files := 0
	sources(t, harness.Root(t), func(path string) {
		files++
		text, err := os.ReadFile(filepath.Join(harness.Root(t), path))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if n := utf8.RuneCountInString(line); n > 120 {
				t.Errorf("%s:%d has %d characters, the cap is 120", path, i+1, n)
			}
		}
	}, ".py", ".sh")
	if files < 60 {
		t.Errorf("found %d files, want 60 or more", files)
	}
}
