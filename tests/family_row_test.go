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
// and draws with it through the node classes and on plans. Nothing else of the program changes, although the family has
// a kind of block of its own, and the matrices of tests of plans, memory and adapters run with it.
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
	run := func(pattern string, tests []string, packages ...string) {
		t.Helper()
		cmd := exec.Command("go", append([]string{
			"test", "-vet", "off", "-overlay", list, "-tags", "sketch", "-run", pattern, "-v",
		}, packages...)...)
		cmd.Dir = harness.Root(t)
		out, err := harness.Printed(cmd)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, name := range tests {
			if !strings.Contains(string(out), "--- PASS: "+name) {
				t.Errorf("%s did not run with the family", name)
			}
		}
	}
	run("^TestRow$", []string{"TestRow"}, "./tests/sketch")
	matrices := []string{
		"TestExactPlansEqualOneRank", "TestLateRanksGiveTheSameBits", "TestForecastEqualsRecordedRun",
		"TestUnmergedEqualsMerged",
	}
	var of []string
	for _, name := range matrices {
		of = append(of, name+"/sketch")
	}
	run("^("+strings.Join(matrices, "|")+")$/^sketch", of, "./parallel", "./models/lora")
	run("^TestParameterCounts$", []string{"TestParameterCounts"}, "./models/published")
}
