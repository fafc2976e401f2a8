package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// TestRunLocalSavesAndWarns runs a workflow without a daemon: --output gets what SaveImage makes, the picture of a
// PreviewImage stays out, and a warning is printed once. Without --local, its flags are refused.
func TestRunLocalSavesAndWarns(t *testing.T) {
	program := harness.Build(t)
	dir := t.TempDir()
	flow, output := filepath.Join(dir, "flow.json"), filepath.Join(dir, "made", "here")
	if err := os.WriteFile(flow, []byte(`{
		"1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0, "colour": 5}},
		"2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "sub/a"}},
		"3": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{{}, {"--json"}} {
		args := append([]string{"run", flow, "--local", "--models", harness.DemoModels(t), "--output", output, "--out", ""},
			more...)
		code, said := harness.Try(t, program, nil, args...)
		if code != 0 || strings.Count(said, "EmptyImage has no input colour") != 1 {
			t.Errorf("%v: exit code %d, want 0 and one warning:\n%s", more, code, said)
		}
	}
	for name, want := range map[string]string{output: "sub", filepath.Join(output, "sub"): "a_00001_.png a_00002_.png"} {
		var names []string
		entries, _ := os.ReadDir(name)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	preview := filepath.Join(dir, "preview.json")
	if err := os.WriteFile(preview, []byte(`{
		"1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
		"3": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, said := harness.Try(t, program, nil, "run", preview, "--local", "--models", harness.DemoModels(t), "--output",
		filepath.Join(dir, "other"), "--out", ""); code != 0 || strings.Contains(said, ".png") {
		t.Errorf("a preview alone: exit code %d, want 0 and no file:\n%s", code, said)
	}
	code, said := harness.Try(t, program, nil, "run", flow, "--output", output)
	if code != 2 || !strings.Contains(said, "--output is for --local") {
		t.Errorf("without --local: exit code %d, want 2 and a reason:\n%s", code, said)
	}
}
