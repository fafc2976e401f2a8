//go:build cgo

package goldenrun

import (
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cpu"
	"patchbay/engine/cpu/emulated"
	"patchbay/engine/cpu/kernels"
)

// NewOps returns a fast Ops for one goroutine: the CPU backend at its best level. Weights packed by one such Ops can be
// used by all others.
func NewOps() engine.Ops {
	ops, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		panic(err) // the best level of this machine always exists
	}
	return ops
}

// Levels compares every level with the golden numbers: all cases on the best level of this CPU, the first case of every
// model on the others. engine/optest checks what a level computes. This checks that it supports the shapes of a family.
func (f Family) Levels(t *testing.T) {
	best := NewOps().Name()
	EachOps(t, func(t *testing.T, ops engine.Ops) {
		f := f
		f.first = ops.Name() != best
		f.On(t, ops)
	})
}

// EachOps runs f with every level that this CPU supports and, if it lacks AVX-512, with the emulated AVX-512 level.
func EachOps(t *testing.T, f func(*testing.T, engine.Ops)) {
	levels := kernels.Levels()
	if slices.ContainsFunc(levels, func(l kernels.Level) bool { return l.Name == "avx512" && l.Table == nil }) {
		levels = append(levels, emulated.AVX512())
	}
	for _, level := range levels {
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
