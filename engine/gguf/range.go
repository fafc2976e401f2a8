package gguf

import (
	"fmt"

	"patchbay/engine"
)

// rangeBytes is the most that Range reads at a time, in bytes.
const rangeBytes = 1 << 20

// Range writes elements [lo, hi) of the flattened tensor to dst as little-endian values of d (f32, bf16 or f16),
// rounded to nearest even, and needs at most a megabyte of other memory. lo and hi may lie inside a block, which is
// then widened whole and cut. It returns an error if the type cannot be widened, d is not one of the three, the range
// lies outside the tensor, or dst is too short.
func (e Tensor) Range(dst []byte, lo, hi int, d engine.DType) error {
	l, err := e.layout()
	if err != nil {
		return err
	}
	switch d {
	case engine.F32, engine.BF16, engine.F16:
	default:
		return fmt.Errorf("tensor %q: cannot be widened to %s (allowed: f32, bf16, f16)", e.Name, d)
	}
	if lo < 0 || hi < lo || hi > e.Len() || len(dst) < (hi-lo)*d.Size() {
		return fmt.Errorf("tensor %q: elements [%d, %d) of %d into %d bytes of %s", e.Name, lo, hi, e.Len(), len(dst), d)
	}
	var chunk [1024]float32 // a multiple of every block size
	var stored, scratch []byte
	for lo < hi {
		first := lo / l.block * l.block
		n := min((hi-first+l.block-1)/l.block*l.block, len(chunk))
		if from := first / l.block * l.size; len(stored) == 0 {
			all := (hi - first + l.block - 1) / l.block * l.size
			stored = e.Data.Slice(from, from+min(all, rangeBytes/l.size*l.size)).View(&scratch)
		}
		n = min(n, len(stored)/l.size*l.block)
		l.widen(chunk[:n], stored)
		stored = stored[n/l.block*l.size:]
		use := chunk[lo-first : min(n, hi-first)]
		engine.Narrow(dst, use, d)
		dst, lo = dst[len(use)*d.Size():], lo+len(use)
	}
	return nil
}
