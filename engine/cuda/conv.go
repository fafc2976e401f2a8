//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
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

// convLines returns how many of the lines of a picture have their rows of k elements of size bytes in o.strip bytes, at
// least one.
func (o *Ops) convLines(lines, width, k, size int) int {
	return min(lines, max(1, o.strip/(width*rowStride(k)*size)))
}

// im2col writes count pixels of y from first on as rows of what they see of x.
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
