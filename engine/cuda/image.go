//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"math"
	"unsafe"

	"patchbay/engine"
)

// Conv2D implements engine.Ops: the pixels under the kernel become rows of a matrix in scratch memory, a strip of lines
// (o.strip bytes, at least one line) at a time, and are multiplied like a linear layer. A 1x1 kernel multiplies the
// picture itself.
func (o *Ops) Conv2D(y, x engine.Tensor, w *engine.Weight, a engine.ConvArgs) {
	engine.CheckConv2D(y, x, w, a)
	if y.Len() == 0 {
		return
	}
	wantLayout("Conv2D", w)
	direct := a.KY == 1 && a.KX == 1 && a.Stride == 1 && max(a.Top, a.Bottom, a.Left, a.Right) == 0
	ld, size := rowStride(w.K()), x.DType.Size()
	lines := y.Dim(1)
	if !direct {
		lines = o.convLines(lines, y.Dim(2), w.K(), size)
	}
	pixels := 0
	if !direct {
		pixels = room(lines * y.Dim(2) * ld * size)
	}
	for b := range y.Dim(0) {
		for from := 0; from < y.Dim(1); from += lines {
			n := min(lines, y.Dim(1)-from)
			part := func(t engine.Tensor) engine.Tensor { return t.Index(0, b).Slice(0, from, from+n) }
			out, e := part(y), engine.Epilogue{}
			if !a.Residual.IsZero() {
				e.Residual = part(a.Residual)
			}
			seen := engine.NewTensor(engine.Buf{}, x.DType, n, y.Dim(2), ld).Slice(2, 0, w.K())
			if direct {
				seen = part(x)
			}
			r := o.route(out, seen, w, e)
			if err := o.mem.need(pixels + r.scratch); err != nil {
				o.Note(err)
				return
			}
			if !direct {
				seen.Buf.Dev = o.mem.take(pixels)
				o.im2col(seen.Buf.Dev, x, y, a, (b*y.Dim(1)+from)*y.Dim(2), n*y.Dim(2), ld)
			}
			o.multiplied("Conv2D", &r, out, seen, w, e)
		}
	}
}

// convLines returns how many of the lines of a picture have room for their rows of k elements of size bytes in o.strip
// bytes, at least one.
func (o *Ops) convLines(lines, width, k, size int) int {
	return min(lines, max(1, o.strip/(width*rowStride(k)*size)))
}

// im2col writes, for count pixels of y from first on, what the kernel covers of x as one row each.
func (o *Ops) im2col(at uint64, x, y engine.Tensor, a engine.ConvArgs, first, count, ld int) {
	size, per := x.DType.Size(), 1
	if pieces(x) != 0 {
		per = 16 / size
	}
	p := C.pb_i64(per)
	o.args.im2col = C.struct_pb_im2col{
		dst: C.pb_u64(at), src: address("Conv2D", x), ld: C.pb_i64(ld) / p, first: C.pb_i64(first), count: C.int(count),
		size: C.int(per * size),
		y:    C.int(x.Dim(1)), x: C.int(x.Dim(2)), c: C.int(x.Dim(3) / per), oy: C.int(y.Dim(1)), ox: C.int(y.Dim(2)),
		ky: C.int(a.KY), kx: C.int(a.KX), stride: C.int(a.Stride), top: C.int(a.Top), left: C.int(a.Left),
	}
	c := &o.args.im2col
	c.xb, c.xy, c.xx = strides3(x)
	c.xb, c.xy, c.xx = c.xb/p, c.xy/p, c.xx/p
	o.flat(kIm2col, count*a.KY*a.KX*x.Dim(3)/per, unsafe.Pointer(c))
}

// groupSlices is the most slices that the pixels of one group are summed in.
const groupSlices = 64

// GroupNormStats implements engine.Ops: every block sums one slice, then the slices are added up in order. No atomics,
// so that the sums of a picture are the same in every run.
func (o *Ops) GroupNormStats(stats, x engine.Tensor, groups int) {
	const op = "GroupNormStats"
	engine.CheckGroupNormStats(stats, x, groups)
	if stats.Len() == 0 {
		return
	}
	pixels := x.Dim(1) * x.Dim(2)
	a := &o.args.group
	*a = C.struct_pb_group{
		x: address(op, x), stats: address(op, stats), sb: C.pb_i64(stats.Stride(0)), sg: C.pb_i64(stats.Stride(1)),
		batch: C.int(x.Dim(0)), height: C.int(x.Dim(1)), width: C.int(x.Dim(2)), c: C.int(x.Dim(3)), groups: C.int(groups),
		slices: C.int(min(groupSlices, max(1, pixels/64))),
	}
	a.xb, a.xy, a.xx = strides3(x)
	whole := wholePixels(a, pieces(x), x)
	items := x.Dim(0) * groups
	bytes := 16 * items * int(a.slices)
	if err := o.mem.need(room(bytes)); err != nil {
		o.Note(err)
		return
	}
	a.part = C.pb_u64(o.mem.take(bytes))
	if whole {
		lanes := threads / (x.Dim(3) / 8)
		o.launch(typed(kGroupPartRows, x.DType), int(a.slices), x.Dim(0), 1, threads, 16*lanes*x.Dim(3), unsafe.Pointer(a))
	} else {
		o.launch(typed(kGroupPart, x.DType), int(a.slices), items, 1, threads, 16*threads/32, unsafe.Pointer(a))
	}
	o.flat(kGroupSum, 2*items, unsafe.Pointer(a))
}

func (o *Ops) GroupNormApply(y, x, stats, w, b engine.Tensor, count int, eps float32, act engine.Act) {
	const op = "GroupNormApply"
	engine.CheckGroupNormApply(y, x, stats, w, b, count, act)
	if y.Len() == 0 {
		return
	}
	a := &o.args.group
	*a = C.struct_pb_group{
		x: address(op, x), y: address(op, y), stats: address(op, stats), w: address(op, w), b: address(op, b),
		sb: C.pb_i64(stats.Stride(0)), sg: C.pb_i64(stats.Stride(1)), count: C.pb_i64(count),
		eps: C.float(eps), act: C.int(act),
		batch: C.int(x.Dim(0)), height: C.int(x.Dim(1)), width: C.int(x.Dim(2)), c: C.int(x.Dim(3)),
		groups: C.int(stats.Dim(1)),
		vec:    pieces(y, x, w, b),
	}
	a.xb, a.xy, a.xx = strides3(x)
	a.yb, a.yy, a.yx = strides3(y)
	items := x.Dim(0) * stats.Dim(1)
	if err := o.mem.need(room(8 * items)); err != nil {
		o.Note(err)
		return
	}
	a.part = C.pb_u64(o.mem.take(8 * items))
	o.flat(kGroupFactors, items, unsafe.Pointer(a))
	if (act == engine.ActNone || act == engine.SiLU) && wholePixels(a, a.vec, x, y) {
		o.launch(typed(kGroupApplyRows, y.DType), int(a.slices), x.Dim(0), 1, threads, 0, unsafe.Pointer(a))
		return
	}
	o.flat(typed(kGroupApply, y.DType), y.Dim(0)*y.Dim(1)*y.Dim(2)*((y.Dim(3)+7)/8), unsafe.Pointer(a))
}

// wholePixels reports whether the kernels of whole pixels compute a call, and sets its slices then: 16 pieces or more a
// thread, two blocks a multiprocessor of the largest GPUs.
func wholePixels(a *C.struct_pb_group, vec C.int, ts ...engine.Tensor) bool {
	const most, perThread = 256, 16
	if vec == 0 || a.c/8 > threads || a.batch > math.MaxUint16 || !near(ts...) {
		return false
	}
	a.slices = C.int(min(most, max(1, int(a.height)*int(a.width)*int(a.c/8)/(threads*perThread))))
	return true
}

// strides3 returns the strides of item, line and pixel of a picture.
func strides3(t engine.Tensor) (b, y, x C.pb_i64) {
	return C.pb_i64(t.Stride(0)), C.pb_i64(t.Stride(1)), C.pb_i64(t.Stride(2))
}
