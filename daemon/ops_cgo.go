//go:build cgo

package daemon

import (
	"os"
	"runtime"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/engine/cpu"
)

// NewOps returns the operations of one rank; ranks that compute at the same time share the processors.
func NewOps(_, ranks int) (engine.Ops, error) { return countedOps(nil, ranks) }

// countedOps is NewOps with a ledger for the memory that operations map.
func countedOps(l *engine.Ledger, ranks int) (engine.Ops, error) {
	return cpu.New(cpu.Config{
		Threads: max(1, runtime.GOMAXPROCS(0)/max(1, ranks)), Level: os.Getenv("PATCHBAY_CPU"), Ledger: l,
	})
}

// CheckLevel returns an *InputError for a PATCHBAY_CPU that this processor does not run. Without it, a worker would
// start and end at once, again and again.
func CheckLevel() error {
	level, have := os.Getenv("PATCHBAY_CPU"), cpu.Levels()
	if level != "" && !slices.Contains(have, level) {
		return refuse("PATCHBAY_CPU=%s: this processor runs %s", level, strings.Join(have, ", "))
	}
	return nil
}

// CPULevels lists the instruction sets that this processor runs, best last.
func CPULevels() []string { return cpu.Levels() }
