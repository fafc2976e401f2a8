//go:build !cgo

package goldenrun

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// NewOps returns an Ops for one goroutine: without C the reference.
func NewOps() engine.Ops { return ref.New() }

// EachOps has nothing to run with: the levels are C.
func EachOps(t *testing.T, _ func(*testing.T, engine.Ops)) {
	t.Log("NOT RUN: built without cgo, there are no CPU levels")
}

// Levels has nothing to compare: the levels are C.
func (f Family) Levels(t *testing.T) { t.Skip("NOT RUN: built without cgo, there are no CPU levels") }
