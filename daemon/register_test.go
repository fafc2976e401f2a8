package daemon

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/ipc/jobs"
	"patchbay/ipc/register"
	"patchbay/node/files"
)

// TestListOfMembers checks that a member with a bad address, or of another version, leaves the others usable.
func TestListOfMembers(t *testing.T) {
	d := &daemon{version: "1", log: zerolog.Nop()}
	file := filepath.Join(t.TempDir(), "hosts")
	if err := d.write(file, []register.Machine{
		{Address: "a:7117", Version: "1"},
		{Address: "b c:7117", Version: "1"},
		{Address: "d\n@x:7117", Version: "1"},
		{Address: "e:7117", Version: "2"},
		{Address: "f:1", Version: "1"},
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "a:7117\nf:1\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := parseHosts("@" + file); err != nil || len(got) != 2 {
		t.Errorf("the list reads as %q, %v", got, err)
	}
}

// TestMembersWithOtherFiles checks that model files of a joining host that differ from those here are named before any
// job, and that equal files and files that are not here are not.
func TestMembersWithOtherFiles(t *testing.T) {
	roots := func(tensor string) files.Roots {
		dir := t.TempDir()
		for name, tensor := range map[string]string{"same": "w", "other": tensor, tensor: "w"} {
			path := filepath.Join(dir, "loras", name+".safetensors")
			header := fmt.Sprintf(`{"%s":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, tensor)
			text := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, append(append(text, header...), 0, 0, 0, 0), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return files.Roots{Models: []string{dir}}
	}
	m := (&Config{Version: "1"}).hostNote(files.NewIndex(roots("a")), "a:7117", 1)
	if len(m.Files) != 3 || m.Folders != nil {
		t.Fatalf("the host says of itself %+v, want three files and no folder", m)
	}
	var log bytes.Buffer
	d := &daemon{version: "1", log: zerolog.New(&log), place: &jobs.Resources{Index: files.NewIndex(roots("b"))}}
	if err := d.write(filepath.Join(t.TempDir(), "hosts"), []register.Machine{m}); err != nil {
		t.Fatal(err)
	}
	named := `"host":"a:7117","file":"loras/other.safetensors"`
	if got := log.String(); strings.Count(got, `"file":`) != 1 || !strings.Contains(got, named) {
		t.Errorf("got %s, want one line with %s", got, named)
	}
}
