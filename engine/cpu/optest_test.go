//go:build cgo

package cpu

import (
	"testing"

	"patchbay/engine/cpu/emulated"
	"patchbay/engine/cpu/kernels"
	"patchbay/engine/optest"
	"patchbay/tests/race"
)

// eachLevel runs f for every level, including the emulated ones, and logs the levels that cannot run here.
func eachLevel(t *testing.T, threads int, f func(t *testing.T, o *Ops)) {
	t.Helper()
	for _, level := range append(kernels.Levels(), emulated.AVX512(), emulated.AVX512BF16(), emulated.AMX()) {
		if level.Table == nil {
			t.Logf("level %s: NOT RUN, this program runs only %v on this CPU (portable: -tags emulated)", level.Name, Levels())
			continue
		}
		t.Run(level.Name, func(t *testing.T) {
			o, err := New(Config{Threads: threads, Kernels: level})
			if err != nil {
				t.Fatal(err)
			}
			f(t, o)
			t.Logf("level %s: run", level.Name)
		})
	}
}

func TestConformance(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestEachCallsEveryTaskOnce has the goroutines of all operations")
	}
	known := &optest.Reference{}
	eachLevel(t, 3, func(t *testing.T, o *Ops) { optest.Run(t, o, optest.Options{BF16: true, Reference: known}) })
}
