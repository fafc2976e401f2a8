//go:build cgo

package goldenrun

import (
	"patchbay/engine"
	"patchbay/engine/cpu"
)

// NewOps returns a fast Ops for one goroutine: the CPU backend at its best level. Weights packed by one serve all others.
func NewOps() engine.Ops {
	ops, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		panic(err) // the best level of this machine always exists
	}
	return ops
}
