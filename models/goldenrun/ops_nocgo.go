//go:build !cgo

package goldenrun

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// NewOps returns an Ops for one goroutine: the reference, in a build without cgo.
func NewOps() engine.Ops { return ref.New() }

// EachOps runs nothing, because the levels are written in C.
func EachOps(t *testing.T, _ func(*testing.T, engine.Ops)) {
	t.Log("NOT RUN: built without cgo, there are no CPU levels")
}

// Levels skips the test, because the levels are written in C.
func (f Family) Levels(t *testing.T) { t.Skip("NOT RUN: built without cgo, there are no CPU levels") }
