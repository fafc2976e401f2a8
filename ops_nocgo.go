//go:build !cgo

package main

import (
	"patchbay/engine"
	"patchbay/engine/ref"
)

// newOps makes the operations of one rank: without a C compiler at build time, the slow reference in Go.
func newOps(_, _ int) (engine.Ops, error) { return ref.New(), nil }

// checkLevel has nothing to refuse: the reference in Go has no levels.
func checkLevel() error { return nil }

// cpuLevels lists the one level of a build without C.
func cpuLevels() []string { return []string{"reference (built without cgo)"} }
