//go:build cgo

package serve_test

import (
	"patchbay/engine"
	"patchbay/engine/cpu"
)

// testOps returns the operations that tests of this package compute with.
func testOps(_, ranks int) (engine.Ops, error) {
	return cpu.New(cpu.Config{Threads: max(1, 2/ranks)})
}
