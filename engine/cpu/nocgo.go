//go:build !cgo

// Package cpu computes with C kernels; without cgo it has none.
package cpu

import (
	"errors"

	"patchbay/engine"
)

// Config says how a backend computes.
type Config struct {
	Threads int
	Level   string
}

// Ops has no implementation in a program built without cgo; New never returns one.
type Ops struct{ engine.Ops }

// Levels returns nothing: the kernels are C.
func Levels() []string { return nil }

// New fails: the kernels are C. The slow backend engine/ref works without.
func New(Config) (*Ops, error) {
	return nil, errors.New("cpu: this program was built without cgo and has no CPU kernels " +
		"(set CGO_ENABLED=1 and have a C compiler)")
}

// Threads returns 0.
func (o *Ops) Threads() int { return 0 }

// Peak returns 0.
func (o *Ops) Peak(int) float64 { return 0 }

// PeakBF16 returns 0.
func (o *Ops) PeakBF16(int) float64 { return 0 }
