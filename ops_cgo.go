//go:build cgo

package main

import (
	"os"
	"runtime"

	"patchbay/engine"
	"patchbay/engine/cpu"
)

// newOps makes the operations of one rank; ranks that compute at the same time share the processors.
func newOps(_, ranks int) (engine.Ops, error) {
	return cpu.New(cpu.Config{Threads: max(1, runtime.GOMAXPROCS(0)/max(1, ranks)), Level: os.Getenv("PATCHBAY_CPU")})
}

// cpuLevels lists the instruction sets that this processor runs, best last.
func cpuLevels() []string { return cpu.Levels() }
