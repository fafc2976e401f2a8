//go:build cgo

package classes

import (
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cpu"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// TestEndToEndOnEveryLevel runs some end-to-end goldens through the nodes at every CPU level of this machine.
// TestEndToEndThroughNodes runs all of them at its best level, and engine/cpu compares every kernel of every level.
func TestEndToEndOnEveryLevel(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	var cases map[string]*e2eCase
	if err := golden.JSON("e2e.json", &cases); err != nil {
		t.Fatal(err)
	}
	few := []string{
		"flux-a/custom-chain", "sd3-a/set_mask-bounds", "pixart-a/euler-normal-cfg4.5-lengths",
		"hydit-a/noise_mask-dpmpp_2m",
	}
	for _, level := range []string{"generic", "avx2", "avx512", "avx512bf16", "amx"} {
		if !slices.Contains(cpu.Levels(), level) {
			t.Logf("level %s: NOT RUN, this CPU has only %v", level, cpu.Levels())
			continue
		}
		t.Run(level, func(t *testing.T) {
			eng := engineOf(t, func(int, int) (engine.Ops, error) { return cpu.New(cpu.Config{Threads: 2, Level: level}) })
			worst := 0.0
			for _, name := range few {
				worst = max(worst, cases[name].run(t, name, eng))
			}
			t.Logf("level %s: run, %d cases, largest relative error %.2g, bound 1e-4", level, len(few), worst)
		})
	}
}
