package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// NATSCommand builds the nats command in its own module, once. It stays in Go's build cache folder.
func NATSCommand(t *testing.T) string {
	t.Helper()
	Installing.Lock()
	defer Installing.Unlock()
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(cache)), "patchbay-natscli-"+natsCLIVersion)
	path := filepath.Join(dir, "nats")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The modules that both need in the versions of the program, which are compiled already.
	mod, err := os.ReadFile(filepath.Join(Root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	mod = append(mod, "\nrequire github.com/nats-io/natscli "+natsCLIVersion+"\n"...)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), mod, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-mod=mod", "-o", path, "github.com/nats-io/natscli/nats")
	cmd.Dir = dir
	if b, err := Printed(cmd); err != nil {
		t.Fatalf("build the nats command %s (this test needs its module): %v\n%s", natsCLIVersion, err, b)
	}
	return path
}

// natsCLIVersion is the version of the nats command that docs/protocol.md shows.
const natsCLIVersion = "v0.4.0"

// Installing serializes builds whose results are kept outside Go's build cache.
var Installing sync.Mutex
