package cpu

/*
#cgo noescape pb_run_stats
#cgo nocallback pb_run_stats
#include "cpu.h"
*/
import "C"

import (
	"math"
	"unsafe"

	"patchbay/engine"
)

const (
	statElems  = 1 << 17 // least elements of a partial sum
	statPieces = 64      // most partial sums of a picture
)

// GroupNormStats writes stats [B, G, 2] f64: sum and sum of squares of each group of channels; see engine.Ops. Pictures
// are split by their size, not by the threads, so results do not depend on Config.Threads.
func (o *Ops) GroupNormStats(stats, x engine.Tensor, groups int) {
	const op = "GroupNormStats"
	engine.CheckGroupNormStats(stats, x, groups)
	if stats.Len() == 0 {
		return
	}
	defer o.done()
	batch, pixels, c := x.Dim(0), x.Dim(1)*x.Dim(2), x.Dim(3)
	pieces := max(1, min(statPieces, pixels*c/statElems))
	sums := unsafe.Slice((*float64)(o.mem.small.need(8*batch*pieces*2*c)), batch*pieces*2*c)
	out, from := numOf(unsafe.Pointer(&sums[0])), o.addr(op, x)
	o.rowTasks(batch*pieces, max(1, pixels*c/pieces), func(r0, r1 int) {
		for r := r0; r < r1; r++ {
			b, i := r/pieces, r%pieces
			a := C.pb_stats{
				dtype: C.int64_t(x.DType),
				out:   out + C.uint64_t(8*r*2*c), x: from + C.uint64_t(x.DType.Size()*b*x.Stride(0)), ys: C.int64_t(x.Stride(1)),
				xs:   C.int64_t(x.Stride(2)),
				in_x: C.int64_t(x.Dim(2)), c: C.int64_t(c), r0: C.int64_t(pixels * i / pieces),
				r1: C.int64_t(pixels * (i + 1) / pieces),
			}
			C.pb_run_stats(o.k, &a)
		}
	})
	per := c / groups
	for b := range batch {
		for g := range groups {
			to := statRow(stats, b, g)
			*to = [2]float64{}
			for i := range pieces {
				part := sums[(b*pieces+i)*2*c:]
				for k := g * per; k < (g+1)*per; k++ {
					to[0] += part[k]
					to[1] += part[c+k]
				}
			}
		}
	}
}

// statRow returns sum and sum of squares of item b, group g.
func statRow(stats engine.Tensor, b, g int) *[2]float64 {
	at := stats.Off + b*stats.Stride(0) + g*stats.Stride(1)
	return (*[2]float64)(unsafe.Pointer(&stats.Buf.Host[8*at]))
}

// GroupNormApply computes y = act((x-mean)*rsqrt(var+eps)*w + b); see engine.Ops.
func (o *Ops) GroupNormApply(y, x, stats, w, b engine.Tensor, count int, eps float32, act engine.Act) {
	const op = "GroupNormApply"
	engine.CheckGroupNormApply(y, x, stats, w, b, count, act)
	if y.Len() == 0 {
		return
	}
	batch, c, groups := x.Dim(0), x.Dim(3), stats.Dim(1)
	// Tables of a mean and a factor for each channel of every picture.
	table := unsafe.Slice((*float32)(o.mem.small.need(8*batch*c)), 2*batch*c)
	means, factors := table[:batch*c], table[batch*c:]
	weight := o.values(op, w)
	for i := range batch * c {
		s := statRow(stats, i/c, i%c/(c/groups))
		mean := s[0] / float64(count)
		variance := max(0, s[1]/float64(count)-mean*mean)
		means[i] = float32(mean)
		factors[i] = float32(float64(weight[i%c]) / math.Sqrt(variance+float64(eps)))
	}
	e, s := o.into(op, C.PB_AFFINE_ACT, y, 1)
	perItem := func(t []float32) C.pb_view {
		return C.pb_view{p: numOf(unsafe.Pointer(&t[0])), s: [4]C.int64_t{0, C.int64_t(c), 0, 0}}
	}
	e.act, e.a, e.b, e.c, e.d = C.int32_t(act), s.view(x), perItem(factors), s.vector(b), perItem(means)
	o.rowWise(e, s)
}

// values returns the elements of an f32 vector.
func (o *Ops) values(op string, t engine.Tensor) []float32 {
	o.addr(op, t) // checks that it lies in host memory
	return unsafe.Slice((*float32)(unsafe.Pointer(&t.Buf.Host[4*t.Off])), t.Len())
}

// Upsample2x repeats every pixel twice in both directions: x [B, Y, X, C] -> y [B, 2Y, 2X, C].
func (o *Ops) Upsample2x(y, x engine.Tensor) {
	const op = "Upsample2x"
	engine.CheckUpsample2x(y, x)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	// Even and odd rows of y are [B, Y, X, 2, C] views, and x is such a view with the 2 broadcast.
	s := space{d: [4]int{x.Dim(0), x.Dim(1), x.Dim(2), 2}, n: x.Dim(3)}
	size := x.DType.Size()
	for odd := range 2 {
		c := C.pb_copy{dst_last: 1, src_last: 1, dst_dtype: -C.int32_t(size), src_dtype: -C.int32_t(size)}
		c.src = C.pb_view{p: o.addr(op, x), s: [4]C.int64_t{
			C.int64_t(x.Stride(0)), C.int64_t(x.Stride(1)),
			C.int64_t(x.Stride(2)), 0,
		}}
		c.dst = C.pb_view{p: o.addr(op, y) + C.uint64_t(size*odd*y.Stride(1))}
		c.dst.s = [4]C.int64_t{
			C.int64_t(y.Stride(0)), C.int64_t(2 * y.Stride(1)), C.int64_t(2 * y.Stride(2)),
			C.int64_t(y.Stride(2)),
		}
		o.copyRows(c, s, size, size)
	}
}
