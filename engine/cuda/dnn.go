//go:build cgo

package cuda

/*
#cgo noescape pb_dnn_attend
#cgo nocallback pb_dnn_attend
#include "dnn.h"
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"patchbay/engine"
)

// sdpa is attention by cuDNN on one stream. Handles and plans are made when a shape is first seen.
type sdpa struct {
	dnn   *C.pb_dnn // nil: no library
	c     *C.pb_dnn_stream
	plans map[C.pb_dnn_shape]*C.pb_dnn_plan // nil: our kernel
	why   error                             // why the last shape has no plan
}

// sdpaSpace is the workspace that plans may have. On GPUs of compute capability 8 and 9 they want 256 bytes or none.
const sdpaSpace = 1 << 20

// free gives plans and handle back.
func (s *sdpa) free() error {
	if s.c == nil {
		return nil
	}
	for _, p := range s.plans {
		if p != nil {
			C.pb_dnn_plan_free(s.c, p)
		}
	}
	return try(func(e *C.pb_error) { C.pb_dnn_close(s.c, e) })
}

// takes reports whether the library may compute a shape: rows of heads in pieces of 16 bytes, no mask and no bias.
func (s *sdpa) takes(a *engine.AttentionShape) bool {
	if s.dnn == nil || !a.Plain || a.DType != engine.BF16 || a.D%8 != 0 || a.D > attendMost || a.Lk == 0 ||
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

// plan returns what cuDNN does for a shape, nil where it has nothing that agrees with our kernel, or there is no memory
// to find out. It is looked up, and compared, once.
func (o *Ops) plan(a *engine.AttentionShape) *C.pb_dnn_plan {
	long := func(n [3]int) [3]C.int64_t { return [3]C.int64_t{C.int64_t(n[0]), C.int64_t(n[1]), C.int64_t(n[2])} }
	s := C.pb_dnn_shape{
		b: C.int(a.B), h: C.int(a.H), lq: C.int(a.Lq), lk: C.int(a.Lk), d: C.int(a.D), q: long(a.Q), k: long(a.K),
		v: long(a.V), o: long(a.O),
	}
	if a.Sums {
		s.stats, s.lse = 1, [2]C.int64_t{C.int64_t(a.LSE[0]), C.int64_t(a.LSE[1])}
	}
	p, known := o.sdpa.plans[s]
	if !known && o.graphs.within != nil { // comparing waits
		o.Note(errMoved)
	} else if !known && o.Err() == nil {
		p = o.planned(s)
		if o.Err() == nil {
			o.sdpa.plans[s] = p
		}
	}
	return p
}

// planned asks the library for a plan and compares it.
func (o *Ops) planned(s C.pb_dnn_shape) (p *C.pb_dnn_plan) {
	if o.sdpa.c == nil {
		o.sdpa.why = try(func(e *C.pb_error) { C.pb_dnn_open(o.sdpa.dnn, o.dev.c, o.at, &o.sdpa.c, e) })
		if o.sdpa.why != nil {
			o.sdpa.dnn = nil // as without the library
			o.chosen.unplanned++
			return nil
		}
	}
	err := try(func(e *C.pb_error) { C.pb_dnn_plan_new(o.sdpa.c, &s, sdpaSpace, &p, e) })
	if p == nil {
		o.sdpa.why = err
		o.chosen.unplanned++
		return nil
	}
	if err = o.attends(&s, p); err == nil {
		return p
	}
	o.sdpa.why = err
	C.pb_dnn_plan_free(o.sdpa.c, p)
	if errors.Is(err, errDisagrees) {
		o.chosen.misattended++
	} else {
		o.chosen.unplanned++
	}
	return nil
}

// byCUDNN computes attention by cuDNN where it has a plan for the shape.
func (o *Ops) byCUDNN(out, q, k, v engine.Tensor, a engine.AttentionArgs) bool {
	if o.sdpa.dnn == nil || o.fixed || pieces(out, q, k, v) == 0 || !(a.Scale >= 0) {
		return false
	}
	shape := engine.AttentionOf(out, q, k, v, a)
	if !o.sdpa.takes(&shape) {
		return false
	}
	p := o.plan(&shape)
	if p == nil {
		return false
	}
	if err := o.mem.need(room(sdpaSpace)); err != nil {
		o.Note(err)
		return true
	}
	const op = "Attention"
	scale := a.Scale
	if scale == 0 {
		scale = float32(1 / math.Sqrt(float64(shape.D)))
	}
	o.attend(p, scale, [5]uint64{
		uint64(address(op, q)), uint64(address(op, k)), uint64(address(op, v)), uint64(address(op, out)),
		uint64(address(op, a.LSE)),
	})
	o.chosen.attended++
	return true
}

// attend enqueues attention by a plan on q, k, v, o and the log-sum-exp, whose scratch memory is there.
func (o *Ops) attend(p *C.pb_dnn_plan, scale float32, at [5]uint64) {
	o.Issue(func(_ uint64, e unsafe.Pointer) {
		C.pb_dnn_attend(o.sdpa.c, p, C.float(scale), C.uint64_t(at[0]), C.uint64_t(at[1]), C.uint64_t(at[2]),
			C.uint64_t(at[3]), C.uint64_t(at[4]), C.uint64_t(o.mem.take(sdpaSpace)), (*C.pb_error)(e))
	})
}

// attends computes attention of the shape by the library and by our kernel and compares what both give, and their
// log-sum-exp, on the device. The scores of the numbers differ by some units, so that a few keys outweigh the others.
// It waits for the stream.
func (o *Ops) attends(s *C.pb_dnn_shape, p *C.pb_dnn_plan) error {
	b, h, lq, lk, d := int(s.b), int(s.h), int(s.lq), int(s.lk), int(s.d)
	extent := func(t [3]C.int64_t, l int) int {
		return (b-1)*int(t[0]) + (l-1)*int(t[1]) + (h-1)*int(t[2]) + d
	}
	const apart = 1024 // elements between the beginnings of q, k and v, so that they differ
	factors := 2 * (max(extent(s.q, lq), extent(s.k, lk), extent(s.v, lk)) + 2*apart)
	outs, sums, n := 2*extent(s.o, lq), 4*((b-1)*int(s.lse[0])+(h-1)*int(s.lse[1])+lq), h*d
	part, done, err := o.borrow(factors, outs, outs, sums, sums, 4*b*lq*n, 4*b*lq*n, 4*max(n, lq), b*lq*max(n, h),
		4*b*max(lq, h))
	if err != nil {
		return err
	}
	defer done()
	if err := o.mem.need(room(sdpaSpace)); err != nil {
		return err
	}
	o.noise(part[0], factors/2)
	scale := 6 / float32(math.Sqrt(float64(d)))
	at := [5]uint64{part[0], part[0] + 2*apart, part[0] + 4*apart, part[1], part[3]}
	o.attendShape(s, scale, at)
	at[3], at[4] = part[2], part[4]
	o.attend(p, scale, at)
	if refusal := (*Error)(nil); errors.As(o.Err(), &refusal) && refusal.OfLibrary() && !refusal.Sticky() {
		o.Forgive() // our kernel computes
		return refusal
	}
	dense := func(to, from uint64, dtype engine.DType, dims, strides [3]int) engine.Tensor { // dims x cols of one tensor
		t := engine.NewTensor(engine.Buf{Dev: to}, dtype, 1, b*dims[0], dims[1]*dims[2])
		count := C.pb_i64(t.Len())
		c := &o.args.copy
		*c = C.struct_pb_copy{dst: C.pb_u64(to), src: C.pb_u64(from), size: C.int(dtype.Size()), count: count}
		c.dims = [5]C.int{1, C.int(b), C.int(dims[0]), C.int(dims[1]), C.int(dims[2])}
		c.ds = [5]C.pb_i64{0, count / C.pb_i64(b), C.pb_i64(dims[1] * dims[2]), C.pb_i64(dims[2]), 1}
		c.ss = [5]C.pb_i64{0, C.pb_i64(strides[0]), C.pb_i64(strides[1]), C.pb_i64(strides[2]), 1}
		o.flat(kCopy, int(count), unsafe.Pointer(c))
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
	err = agree("attention", part[1], part[2], 1.0/64, engine.BF16, [3]int{lq, h, d}, ints(s.o)) // both round
	if err == nil && s.stats != 0 {
		// f32: a key too many shows
		err = agree("log-sum-exp", part[3], part[4], 1.0/(1<<14), engine.F32, [3]int{1, h, lq},
			[3]int{int(s.lse[0]), 0, int(s.lse[1])})
	}
	return err
}

// ints converts strides.
func ints(t [3]C.int64_t) [3]int { return [3]int{int(t[0]), int(t[1]), int(t[2])} }

// attendShape computes attention of a shape by our kernel, on q, k, v, o and the log-sum-exp.
func (o *Ops) attendShape(s *C.pb_dnn_shape, scale float32, at [5]uint64) {
	kernel := flashKernel(int(s.d))
	for from := 0; from < int(s.b); from += C.PB_MAX_ITEMS {
		item := func(i, size int, stride C.int64_t) C.pb_u64 { return C.pb_u64(at[i] + uint64(size*from*int(stride))) }
		long := func(t [3]C.int64_t) [3]C.pb_i64 { return [3]C.pb_i64{C.pb_i64(t[0]), C.pb_i64(t[1]), C.pb_i64(t[2])} }
		p := &o.args.attend
		*p = C.struct_pb_attend{
			q: item(0, 2, s.q[0]), k: item(1, 2, s.k[0]), v: item(2, 2, s.v[0]), o: item(3, 2, s.o[0]), qs: long(s.q),
			ks: long(s.k),
			vs: long(s.v), os: long(s.o), lq: s.lq, lk: s.lk, h: s.h, d: s.d, scale: C.float(scale),
		}
		if s.stats != 0 {
			p.lse, p.lse_s = item(4, 4, s.lse[0]), [2]C.pb_i64{C.pb_i64(s.lse[0]), C.pb_i64(s.lse[1])}
		}
		n := min(C.PB_MAX_ITEMS, int(s.b)-from)
		o.launch(kernel, (int(s.lq)+flashQueries-1)/flashQueries, int(s.h), n, threads, kernels[kernel].shared,
			unsafe.Pointer(p))
	}
}
