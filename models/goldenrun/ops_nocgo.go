//go:build !cgo

package goldenrun

import (
	"patchbay/engine"
	"patchbay/engine/ref"
)

// NewOps returns an Ops for one goroutine: without C the reference.
func NewOps() engine.Ops { return ref.New() }
