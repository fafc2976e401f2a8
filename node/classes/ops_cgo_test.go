//go:build cgo

package classes

import (
	"patchbay/engine"
	"patchbay/engine/cpu"
)

// fastOps returns the operations for expensive tests.
func fastOps(_, ranks int) (engine.Ops, error) {
	return cpu.New(cpu.Config{Threads: max(1, 2/ranks)})
}
