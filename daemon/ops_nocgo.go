//go:build !cgo

package daemon

import (
	"patchbay/engine"
	"patchbay/engine/ref"
)

// NewOps returns the operations of one rank: in a build without cgo, those of the slow reference in Go.
func NewOps(_, _ int) (engine.Ops, error) { return ref.New(), nil }

// countedOps is NewOps: the reference allocates on the Go heap only, which needs no counting here.
func countedOps(_ *engine.Ledger, _ int) (engine.Ops, error) { return ref.New(), nil }

// CheckLevel returns nil: the reference in Go has no levels.
func CheckLevel() error { return nil }

// CPULevels lists the one level of a build without cgo.
func CPULevels() []string { return []string{"reference (built without cgo)"} }
