//go:build cgo

package parallel

import (
	"patchbay/engine"
	"patchbay/engine/cpu"
)

// testOps returns the Ops that tests of this package compute with.
func testOps(_, ranks int) (engine.Ops, error) {
	return cpu.New(cpu.Config{Threads: max(1, 2/ranks)})
}

// narrowOps returns Ops whose packed matrices take hardly more than their file: those of wide vectors are padded to
// 64 rows, of which the matrices of some tiny models have half.
func narrowOps(_, ranks int) (engine.Ops, error) {
	return cpu.New(cpu.Config{Threads: max(1, 2/ranks), Level: cpu.Levels()[0]})
}
