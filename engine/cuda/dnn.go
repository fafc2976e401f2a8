//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/engine/cuda/dnn"
	"patchbay/engine/cuda/driver"
)

// sdpa is attention by cuDNN on one stream. The handle is made with the first plan, a plan when its shape is first
// seen.
type sdpa struct {
	lib   *dnn.Library // nil: no library
	on    *dnn.Stream
	plans choices[engine.AttentionShape, dnn.Execution]
}

// free releases the plans and the handle.
func (s *sdpa) free() error {
	if s.on == nil {
		return nil
	}
	for _, p := range s.plans {
		s.on.Drop(p)
	}
	return s.on.Close()
}

// takes reports whether the library may compute a shape: rows of heads in pieces of 16 bytes, no mask and no bias.
func (s *sdpa) takes(a *engine.AttentionShape) bool {
	if s.lib == nil || !a.Plain || a.DType != engine.BF16 || a.D%8 != 0 || a.D > attendMost || a.Lk == 0 ||
		a.B*a.H*a.Lq == 0 {
		return false
	}
	for _, t := range [][3]int{a.Q, a.K, a.V, a.O} {
		for _, stride := range t {
			if stride <= 0 || stride%8 != 0 {
				return false
			}
		}
	}
	return true
}

// plan returns cuDNN's plan for a shape, nil if it has none that agrees with our kernel or there is no memory to
// compare them.
func (o *Ops) plan(a *engine.AttentionShape) *dnn.Execution { return o.sdpa.plans.of(o, *a, o.planned) }

// planned asks the library for a plan and compares it with our kernel.
func (o *Ops) planned(a *engine.AttentionShape) *dnn.Execution {
	p, err := (*dnn.Execution)(nil), error(nil)
	if o.sdpa.on == nil {
		o.dev.CaptureMu.Lock() // the library may wait for the whole device
		o.sdpa.on, err = o.sdpa.lib.On(o.Stream)
		o.dev.CaptureMu.Unlock()
		if err != nil {
			o.sdpa.lib = nil // as if there were no library
		}
	}
	if err == nil {
		p, err = o.sdpa.on.Plan(a)
	}
	if err == nil {
		err = o.checkAttention(a, p)
	}
	if err == nil {
		return p
	}
	if p != nil {
		o.sdpa.on.Drop(p)
	}
	if errors.Is(err, errDisagrees) {
		o.chosen.attentionMismatches++
	} else {
		o.chosen.unplanned++
	}
	return nil
}

// byCUDNN computes attention by cuDNN if it has a plan for the shape, and reports whether it has taken over the call.
func (o *Ops) byCUDNN(shape *engine.AttentionShape, scale float32, at [5]uint64) bool {
	if !o.sdpa.takes(shape) || o.fixed || !(scale >= 0) {
		return false
	}
	p := o.plan(shape)
	if p == nil {
		return false
	}
	if err := o.mem.need(room(dnn.Space)); err != nil {
		o.Note(err)
		return true
	}
	o.sdpa.on.Attend(p, scale, at, o.mem.take(dnn.Space))
	o.chosen.attended++
	return true
}

// sample is n of the numbers below a limit, evenly apart, the last one among them.
type sample struct{ n, first, step int }

func sampleOf(limit, most int) sample {
	s := sample{n: min(limit, most), step: 1}
	if s.n > 1 {
		s.step = (limit - 1) / (s.n - 1)
	}
	s.first = limit - 1 - (s.n-1)*s.step
	return s
}

// checkAttention computes attention of the shape by the library and by our kernel and compares results on the device:
// those of up to 256 queries of the first and the last head, and every log-sum-exp. The scores of the test data differ
// by some units, so that a few keys outweigh the others. It waits for the stream.
func (o *Ops) checkAttention(s *engine.AttentionShape, p *dnn.Execution) error {
	b, h, lq, lk, d := s.B, s.H, s.Lq, s.Lk, s.D
	extent := func(t [3]int, l int) int { return (b-1)*t[0] + (l-1)*t[1] + (h-1)*t[2] + d }
	const apart = 1024 // elements between the starts of q, k and v, so that they differ
	factors := 2 * (max(extent(s.Q, lq), extent(s.K, lk), extent(s.V, lk)) + 2*apart)
	outs, sums := 2*extent(s.O, lq), 4*((b-1)*s.LSE[0]+(h-1)*s.LSE[1]+lq)
	rows, heads := sampleOf(lq, 256), sampleOf(h, 2)
	compared := max(2*b*rows.n*heads.n*d, 4*b*h*lq)
	part, done, err := o.borrow(factors, outs, outs, sums, sums, compared, compared, 4*max(heads.n*d, lq), compared,
		4*b*max(rows.n, h))
	if err != nil {
		return err
	}
	defer done()
	if err := o.mem.need(room(dnn.Space)); err != nil {
		return err
	}
	o.noise(part[0], factors/2, 0)
	scale := 6 / float32(math.Sqrt(float64(d)))
	at := [5]uint64{part[0], part[0] + 2*apart, part[0] + 4*apart, part[1], part[3]}
	o.attend(flashKernel(d), flashQueries, s, scale, at, engine.AttentionArgs{})
	at[3], at[4] = part[2], part[4]
	o.sdpa.on.Attend(p, scale, at, o.mem.take(dnn.Space))
	if refusal := (*driver.Error)(nil); errors.As(o.Err(), &refusal) && refusal.OfLibrary() && !refusal.Sticky() {
		o.Forgive() // our kernel computes instead
		return refusal
	}
	dense := func(to, from uint64, dtype engine.DType, dims, strides [3]int) engine.Tensor { // a contiguous copy
		t := engine.NewTensor(engine.Buf{Dev: to}, dtype, 1, b*dims[0], dims[1]*dims[2])
		count := C.pb_i64(t.Len())
		c := &o.args.copy
		*c = C.struct_pb_copy{dst: C.pb_u64(to), src: C.pb_u64(from), size: C.int(dtype.Size()), count: count}
		c.dims = [5]C.int{1, C.int(b), C.int(dims[0]), C.int(dims[1]), C.int(dims[2])}
		c.ds = [5]C.pb_i64{0, count / C.pb_i64(b), C.pb_i64(dims[1] * dims[2]), C.pb_i64(dims[2]), 1}
		c.ss = [5]C.pb_i64{0, C.pb_i64(strides[0]), C.pb_i64(strides[1]), C.pb_i64(strides[2]), 1}
		o.copyBy(kCopy)
		return t
	}
	agree := func(what string, ours, theirs uint64, bound float64, dtype engine.DType, dims, strides [3]int) error {
		diff, whole := o.difference(dense(part[5], ours, dtype, dims, strides), dense(part[6], theirs, dtype, dims,
			strides), part[7],
			part[8], part[9])
		if o.Err() == nil && !(diff <= bound*whole) {
			return fmt.Errorf("%w: %s of %d x %d queries of %d heads, %d keys of %d: by %.3g of %.3g", errDisagrees, what, b,
				lq, h, lk, d, diff, whole)
		}
		return o.Err()
	}
	first := uint64(2 * (rows.first*s.O[1] + heads.first*s.O[2]))
	err = agree("attention", part[1]+first, part[2]+first, 1.0/64, engine.BF16, [3]int{rows.n, heads.n, d},
		[3]int{s.O[0], rows.step * s.O[1], heads.step * s.O[2]}) // both round to bf16
	if err == nil && s.Sums {
		// in f32 a single extra key shows
		err = agree("log-sum-exp", part[3], part[4], 1.0/(1<<14), engine.F32, [3]int{1, h, lq},
			[3]int{s.LSE[0], 0, s.LSE[1]})
	}
	return err
}
