//go:build !cgo

package serve_test

import (
	"patchbay/engine"
	"patchbay/engine/ref"
)

// testOps returns the operations that tests of this package compute with.
func testOps(_, _ int) (engine.Ops, error) { return ref.New(), nil }
