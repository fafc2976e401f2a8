package tests

import (
	"bytes"
	"errors"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// TestLevelsDrawTheSame forces every CPU level in turn and checks that the demo's pictures are at most one of 255
// levels apart. A level that the processor lacks is refused at once, with those that it has.
func TestLevelsDrawTheSame(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: the conformance tests of engine/cpu run every level")
	}
	program, dir := harness.Build(t), t.TempDir()
	demo := func(level string) ([]byte, error) {
		file := filepath.Join(dir, level+".png")
		cmd := exec.Command(program, "demo", "--out", file)
		cmd.Env = append(os.Environ(), "PATCHBAY_CPU="+level)
		if out, err := harness.Printed(cmd); err != nil {
			return out, err
		}
		return os.ReadFile(file)
	}
	output, err := exec.Command(program, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(output), "cpu ")
	have := strings.Fields(after)
	if slices.Contains(have, "reference") {
		t.Skip("NOT RUN: the program was built without cgo and has no levels")
	}
	var first []byte
	for _, level := range []string{"generic", "avx2", "avx512", "avx512bf16", "amx"} {
		if !slices.Contains(have, level) {
			t.Logf("level %s: NOT RUN, this processor has only %v", level, have)
			continue
		}
		picture, err := demo(level)
		if err != nil {
			t.Fatalf("%s: %v\n%s", level, err, picture)
		}
		if first == nil {
			first = picture
		}
		n := levelsApart(t, first, picture)
		t.Logf("level %s: run, %d of 255 levels from generic", level, n)
		if n > 1 {
			t.Errorf("%s: the picture is %d levels from that of generic, at most 1 is allowed", level, n)
		}
	}
	run := exec.Command(program, "run", filepath.Join("..", "examples", "demo.json"), "--local", "--models",
		harness.DemoModels(t),
		"--out", dir)
	run.Env = append(os.Environ(), "PATCHBAY_CPU=avx9")
	for name, refused := range map[string]func() ([]byte, error){
		"demo": func() ([]byte, error) { return demo("avx9") }, "run --local": run.CombinedOutput,
	} {
		out, err := refused()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() < 1 || strings.Count(string(out), "\n") != 1 ||
			!strings.Contains(string(out), "this processor runs "+strings.Join(have, ", ")) {
			t.Errorf("%s with PATCHBAY_CPU=avx9: %v, %s; want one line that lists %v", name, err, out, have)
		}
	}
}

// levelsApart returns the largest difference of two pictures in 8-bit levels.
func levelsApart(t *testing.T, a, b []byte) int {
	t.Helper()
	x, err := png.Decode(bytes.NewReader(a))
	if err != nil {
		t.Fatal(err)
	}
	y, err := png.Decode(bytes.NewReader(b))
	if err != nil || x.Bounds() != y.Bounds() {
		t.Fatalf("pictures of %v and %v: %v", x.Bounds(), y.Bounds(), err)
	}
	most := 0
	for r := range x.Bounds().Dy() {
		for c := range x.Bounds().Dx() {
			r1, g1, b1, _ := x.At(c, r).RGBA()
			r2, g2, b2, _ := y.At(c, r).RGBA()
			for _, d := range []int{int(r1>>8) - int(r2>>8), int(g1>>8) - int(g2>>8), int(b1>>8) - int(b2>>8)} {
				most = max(most, d, -d)
			}
		}
	}
	return most
}
