//go:build cgo

package goldenrun

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/cpu"
	"patchbay/engine/cpu/emulated"
	"patchbay/engine/cpu/kernels"
)

// NewOps returns a fast Ops for one goroutine: the CPU backend at its best level. Weights packed by one serve all
// others.
func NewOps() engine.Ops {
	ops, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		panic(err) // the best level of this machine always exists
	}
	return ops
}

// Levels compares every level that this CPU runs, and the emulated form of the widest, with the golden numbers.
func (f Family) Levels(t *testing.T) { EachOps(t, f.On) }

// EachOps runs f with every level that this CPU has, and with the emulated form of the widest.
func EachOps(t *testing.T, f func(*testing.T, engine.Ops)) {
	for _, level := range append(kernels.Levels(), emulated.AVX512()) {
		if level.Table == nil {
			t.Logf("level %s: NOT RUN, this CPU has only %v", level.Name, cpu.Levels())
			continue
		}
		t.Run(level.Name, func(t *testing.T) {
			ops, err := cpu.New(cpu.Config{Threads: 2, Kernels: level})
			if err != nil {
				t.Fatal(err)
			}
			f(t, ops)
		})
	}
}
