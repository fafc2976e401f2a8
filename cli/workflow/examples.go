package workflow

import (
	"fmt"
	"os"
	"path/filepath"

	"patchbay/daemon"
)

// Examples returns the folder of examples: one relative to the program (in a source tree or an installation), in the
// working directory, or in PATCHBAY_HOME.
func Examples() (string, error) {
	var places []string
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		dir := filepath.Dir(self)
		places = append(places, filepath.Join(dir, "..", "examples"),
			filepath.Join(dir, "..", "share", "patchbay", "examples"), filepath.Join(dir, "examples"))
	}
	places = append(places, "examples", filepath.Join(daemon.Home(), "examples"))
	for _, p := range places {
		if _, err := os.Stat(filepath.Join(p, "demo.json")); err == nil {
			return filepath.Abs(p)
		}
	}
	return "", fmt.Errorf(
		"examples/demo.json is not beside the program or here; run it from the source folder, or install with install.sh")
}

// Demo returns the path of a file of the demo's model.
func Demo(folder, name string) (string, error) {
	examples, err := Examples()
	return filepath.Join(examples, "demo", folder, name), err
}
