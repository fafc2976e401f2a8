//go:build cgo

package cpu

import (
	"slices"
	"testing"

	"patchbay/engine/optest"
)

// eachLevel runs f for every level in the program and says which ones this CPU cannot run.
func eachLevel(t *testing.T, threads int, f func(t *testing.T, o *Ops)) {
	t.Helper()
	for _, level := range allLevels() {
		if !slices.Contains(Levels(), level) && !forTests(level) {
			t.Logf("level %s: NOT RUN, this CPU has only %v", level, Levels())
			continue
		}
		t.Run(level, func(t *testing.T) {
			o, err := New(Config{Threads: threads, Level: level})
			if err != nil {
				t.Fatal(err)
			}
			f(t, o)
			t.Logf("level %s: run", level)
		})
	}
}

func TestConformance(t *testing.T) {
	eachLevel(t, 3, func(t *testing.T, o *Ops) { optest.Run(t, o, optest.Options{BF16: true}) })
}
