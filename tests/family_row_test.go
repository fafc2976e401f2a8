package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// TestFamilyIsOneFolderAndOneRow adds a family that is one folder, tests/sketch, to the table of families with one row,
// and draws with it through the node classes and on plans. Nothing else of the program changes.
func TestFamilyIsOneFolderAndOneRow(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: it compiles the program again with one more family; tests/sketch is tested alone")
	}
	table := filepath.Join(harness.Root(t), "models", "models.go")
	source, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	const row, first = "\treturn []family.Family{\n", "import (\n"
	changed := strings.Replace(string(source), row, row+"\t\tsketch.Family(),\n", 1)
	changed = strings.Replace(changed, first, first+"\t\"patchbay/tests/sketch\"\n", 1)
	if strings.Count(changed, "\n") != strings.Count(string(source), "\n")+2 {
		t.Fatalf("%s has no table that begins with %q", table, row)
	}
	dir := t.TempDir()
	other := filepath.Join(dir, "models.go")
	if err := os.WriteFile(other, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {table: other}})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-vet", "off", "-overlay", list, "-tags", "sketch", "-run", "^TestRow$", "-v",
		"./tests/sketch")
	cmd.Dir = harness.Root(t)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRow") {
		t.Fatalf("%v\n%s", err, out)
	}
}
