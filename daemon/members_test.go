package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/ipc/members"
)

// TestListOfMembers: an entry of a group that no list could have, or of another version, leaves the others usable.
func TestListOfMembers(t *testing.T) {
	d := &daemon{version: "1", log: zerolog.Nop()}
	file := filepath.Join(t.TempDir(), "hosts")
	if err := d.write(file, []members.Member{
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
