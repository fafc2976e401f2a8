package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

type namingCase struct {
	Case    string
	Before  *string `json:"created_before"`
	Prefix  string
	Images  []FileRef
	Status  string
	Message []string `json:"error"`
}

func TestFileNamesMatchGolden(t *testing.T) {
	var file struct{ Naming []namingCase }
	if err := golden.JSON("server/files.json", &file); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	scratch.Touch(t, filepath.Join(folder, "sub_00001_.png")) // from a run that was not recorded
	for _, c := range file.Naming {
		if c.Before != nil {
			scratch.Touch(t, filepath.Join(folder, *c.Before))
		}
		n := max(1, len(c.Images))
		for i := range n {
			ref, err := Commit(folder, Output{Prefix: c.Prefix, Type: "output", Ext: ".png", Data: []byte{1}, Index: i})
			switch {
			case c.Status == "error":
				if err == nil || fault.From(err).Code != fault.FileOutsideRoot {
					t.Errorf("%s: got %v and %v, want file_outside_root", c.Case, ref, err)
				}
			case err != nil:
				t.Errorf("%s: %v", c.Case, err)
			case ref != c.Images[i]:
				t.Errorf("%s: got %+v, want %+v", c.Case, ref, c.Images[i])
			}
		}
	}
}

func TestCommitNeverOverwrites(t *testing.T) {
	folder := t.TempDir()
	const jobs, each = 8, 12
	var wg sync.WaitGroup
	names := make(chan string, jobs*each)
	for j := range jobs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				ref, err := Commit(folder, Output{Prefix: "same", Type: "output", Ext: ".png", Data: []byte(fmt.Sprint(j, " ", i))})
				if err != nil {
					t.Error(err)
					return
				}
				names <- ref.Filename
			}
		}()
	}
	wg.Wait()
	close(names)
	seen, contents := map[string]bool{}, map[string]bool{}
	for n := range names {
		data, err := os.ReadFile(filepath.Join(folder, n))
		if err != nil {
			t.Fatal(err)
		}
		seen[n], contents[string(data)] = true, true
	}
	if len(seen) != jobs*each || len(contents) != jobs*each {
		t.Errorf("%d names and %d contents, want %d of each", len(seen), len(contents), jobs*each)
	}
	if left, _ := filepath.Glob(filepath.Join(folder, ".patchbay-*")); len(left) > 0 {
		t.Errorf("staged files were left behind: %v", left)
	}
}

func TestCommitStaysInTheFolder(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{
		"../x", "/tmp/x", "a/../../x", "link/x", "link/new/x", "a\x00b", strings.Repeat("n", 300),
	} {
		ref, err := Commit(folder, Output{Prefix: prefix, Ext: ".png"})
		if err == nil || strings.HasPrefix(prefix, "link") && fault.From(err).Code != fault.FileOutsideRoot {
			t.Errorf("prefix %q: saved as %+v, %v", prefix, ref, err)
		}
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("files outside: %v", left)
	}
	if err := os.Mkdir(filepath.Join(folder, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(folder, "real"), filepath.Join(folder, "inner")); err != nil {
		t.Fatal(err)
	}
	if ref, err := Commit(folder, Output{Prefix: "inner/new/x", Ext: ".png"}); err != nil || ref.Subfolder != "inner/new" {
		t.Errorf("through a link that stays: %+v, %v", ref, err)
	}
}

func TestPrefixVariables(t *testing.T) {
	got, err := CheckPrefix("%year%/%width%x%height%_%foo%", 640, 480)
	want := fmt.Sprintf("%d/640x480_%%foo%%", time.Now().Year())
	if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestBareNames checks the names that end with the number, and that both kinds of names have one counter, as ComfyUI's.
func TestBareNames(t *testing.T) {
	folder := t.TempDir()
	var names []string
	for _, bare := range []bool{true, false, true} {
		ref, err := Commit(folder, Output{Prefix: "a", Type: "output", Ext: ".png", Bare: bare, Data: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, ref.Filename)
	}
	if want := []string{"a_00001.png", "a_00002_.png", "a_00003.png"}; !slices.Equal(names, want) {
		t.Errorf("the names are %v, want %v", names, want)
	}
}
