//go:build !cgo

package daemon

import (
	"patchbay/engine"
	"patchbay/engine/ref"
)

// NewOps makes the operations of one rank: without a C compiler at build time, the slow reference in Go.
func NewOps(_, _ int) (engine.Ops, error) { return ref.New(), nil }

// countedOps is NewOps: the memory of the reference is the Go heap's.
func countedOps(_ *engine.Ledger, _ int) (engine.Ops, error) { return ref.New(), nil }

// CheckLevel has nothing to refuse: the reference in Go has no levels.
func CheckLevel() error { return nil }

// CPULevels lists the one level of a build without C.
func CPULevels() []string { return []string{"reference (built without cgo)"} }
