//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"patchbay/engine"
)

// errDisagrees says that a library gives different numbers than our kernel.
var errDisagrees = errors.New("a library and the kernel of this program give different numbers")

// choices maps shapes to the plans of a library. A shape is looked up, and compared with our kernel, once; nil means
// that our kernel computes it.
type choices[S comparable, P any] map[S]*P

// of returns the choice for a shape, which choose makes when it is first seen.
func (c choices[S, P]) of(o *Ops, s S, choose func(*S) *P) *P {
	p, known := c[s]
	switch {
	case known || o.Err() != nil:
	case o.graphs.within != nil: // a comparison would wait
		o.Note(errCaptureNeedsMemory)
	default:
		shape := s // escapes to the heap only here
		if p = choose(&shape); o.Err() == nil {
			c[s] = p
		}
	}
	return p
}

// borrow allocates memory for a comparison in pieces of the given sizes, and returns their addresses and what frees
// them. If there is not enough, it returns an engine.ErrOutOfMemory that does not become an error of the stream: our
// kernels need no such memory.
func (o *Ops) borrow(sizes ...int) (part []uint64, done func(), err error) {
	total := 0
	for _, size := range sizes {
		total += room(size)
	}
	memory, err := o.dev.Alloc(total)
	if err != nil {
		if !errors.Is(err, engine.ErrOutOfMemory) {
			o.Note(fmt.Errorf("compare a library with the kernel of this program: %w", err))
		}
		return nil, nil, err
	}
	part = make([]uint64, len(sizes))
	at := memory
	for i, size := range sizes {
		part[i], at = at, at+uint64(room(size))
	}
	return part, func() { o.Note(o.dev.Free(memory)) }, nil
}

// difference compares two tensors [1, m, n] on the device. It returns the largest difference and the largest magnitude
// of ours, in the same unit, NaN where there is one. It overwrites theirs and the memory at ones (n f32), codes (m n
// bytes) and scales (m f32), and waits for the device.
func (o *Ops) difference(ours, theirs engine.Tensor, ones, codes, scales uint64) (diff, whole float64) {
	m, n := ours.Dim(1), ours.Dim(2)
	minus := engine.NewTensor(engine.Buf{Dev: ones}, engine.F32, 1, n)
	o.Fill(minus, -1)
	o.GatedAdd(theirs, ours, minus, theirs, engine.Tensor{})
	q := engine.NewTensor(engine.Buf{Dev: codes}, engine.F8E4M3, 1, m, n)
	scale := engine.NewTensor(engine.Buf{Dev: scales}, engine.F32, 1, m)
	most := func(x engine.Tensor) float64 { // the largest magnitude, by the scales of the rows
		o.Quantise(q, scale, x)
		got, largest := make([]float32, m), 0.0
		o.Note(o.Download(got, scale).Wait())
		for _, v := range got {
			largest = max(largest, float64(v)) // NaN stays
		}
		return largest
	}
	return most(theirs), most(ours)
}

// noise fills n elements of bf16 with pseudorandom numbers from -1 to 1 that repeat with a prime period. Each kind, 0
// to 3, is another sequence of another period: rows of two kinds are uncorrelated.
func (o *Ops) noise(at uint64, n, kind int) {
	period := [...]int{8191, 8179, 8171, 8167}[kind]
	values := make([]float32, min(n, period))
	state := uint32(1 + kind)
	for i := range values {
		state = state*1664525 + 1013904223 // Numerical Recipes, 3rd edition, 7.1.4
		values[i] = float32(int32(state)) / (1 << 31)
	}
	o.Upload(engine.NewTensor(engine.Buf{Dev: at}, engine.BF16, len(values)), values)
	for have := len(values); have < n; have *= 2 {
		o.Move(at+uint64(2*have), at, 2*min(have, n-have))
	}
}
