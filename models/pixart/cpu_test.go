//go:build cgo

package pixart

import (
	"testing"

	"patchbay/engine/cpu"
)

// TestForwardOnCPU compares every level that this machine runs, and the portable form of the widest, with the golden numbers.
func TestForwardOnCPU(t *testing.T) {
	levels := append(cpu.Levels(), "portable512")
	t.Logf("levels of this machine: %v", levels)
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			ops, err := cpu.New(cpu.Config{Threads: 2, Level: level})
			if err != nil {
				t.Fatal(err)
			}
			family().On(t, ops)
		})
	}
}
