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

// normScratch is the shared memory of a norm: a number a warp.
const normScratch = 128

// norm launches o.args.norm, whose operands are set: a block a row, of a thread for every 16 elements, at most 512.
func (o *Ops) norm(y engine.Tensor) {
	a := &o.args.norm
	size := min(512, (int(a.r.cols)+511)/512*32)
	o.launch(typed(kNorm, y.DType), int(a.r.rows), 1, 1, size, normScratch, unsafe.Pointer(a))
}

// LayerNorm implements engine.Ops.
func (o *Ops) LayerNorm(y, x, w, b engine.Tensor, eps float32) {
	engine.CheckLayerNorm(y, x, w, b)
	if y.Len() == 0 {
		return
	}
	a := &o.args.norm
	*a = C.struct_pb_norm{
		r: rowsOf("LayerNorm", y), eps: C.float(eps), w: vectorOf("LayerNorm", w),
		b: vectorOf("LayerNorm", b),
	}
	a.r.vec = pieces(y, x, w, b)
	a.y, a.x = viewOf("LayerNorm", &a.r, y), viewOf("LayerNorm", &a.r, x)
	o.norm(y)
}

// RMSNorm implements engine.Ops.
func (o *Ops) RMSNorm(y, x, w engine.Tensor, eps float32) {
	engine.CheckRMSNorm(y, x, w)
	if y.Len() == 0 {
		return
	}
	a := &o.args.norm
	*a = C.struct_pb_norm{r: rowsOf("RMSNorm", y), eps: C.float(eps), w: vectorOf("RMSNorm", w), rms: 1}
	a.r.vec = pieces(y, x, w)
	a.y, a.x = viewOf("RMSNorm", &a.r, y), viewOf("RMSNorm", &a.r, x)
	o.norm(y)
}

// AdaLN implements engine.Ops.
func (o *Ops) AdaLN(y, x, shift, scale engine.Tensor, eps float32) {
	engine.CheckAdaLN(y, x, shift, scale)
	if y.Len() == 0 {
		return
	}
	a := &o.args.norm
	*a = C.struct_pb_norm{
		r: rowsOf("AdaLN", y), eps: C.float(eps), w_add: 1,
		w: modulationOf("AdaLN", scale, y.Dim(0)), b: modulationOf("AdaLN", shift, y.Dim(0)),
	}
	a.r.vec = pieces(y, x, shift, scale)
	a.y, a.x = viewOf("AdaLN", &a.r, y), viewOf("AdaLN", &a.r, x)
	o.norm(y)
}

// QKNormRoPE implements engine.Ops. Heads of at most 1024 elements.
func (o *Ops) QKNormRoPE(dq, dk, dv, q, k, v engine.Tensor, n engine.QKNorm, r engine.RoPE) {
	const op = "QKNormRoPE"
	engine.CheckQKNormRoPE(dq, dk, dv, q, k, v, n, r)
	if k.Len() == 0 {
		return
	}
	d := k.Dim(3)
	if d > 1024 {
		panic(&engine.ShapeError{Op: op, Rule: "heads of at most 1024 elements", Shapes: k.String()})
	}
	a := &o.args.heads
	*a = C.struct_pb_heads{
		batch: C.int(k.Dim(0)), l: C.int(k.Dim(1)), h: C.int(k.Dim(2)), d: C.int(d), eps: C.float(n.Eps),
		lanes: 1, vec: pieces(dq, dk, dv, q, k, v), cos: address(op, r.Cos), sin: address(op, r.Sin),
	}
	rope := C.int(0)
	if !r.Cos.IsZero() {
		rope, a.cos_s, a.sin_s = 1, C.pb_i64(r.Cos.Stride(0)), C.pb_i64(r.Sin.Stride(0))
	}
	if !q.IsZero() {
		o.part(dq, q, n.QScale, n.QBias, C.int(n.Kind), rope)
	}
	o.part(dk, k, n.KScale, n.KBias, C.int(n.Kind), rope)
	if !v.IsZero() {
		o.part(dv, v, engine.Tensor{}, engine.Tensor{}, 0, 0)
	}
	kernel := kHeads
	if d > 256 {
		kernel = kHeadsWide
	}
	for int(a.lanes)*8 < d && a.lanes < 32 {
		a.lanes *= 2
	}
	heads := int(a.parts) * k.Dim(0) * k.Dim(1) * k.Dim(2)
	o.flat(typed(kernel, k.DType), heads*int(a.lanes), unsafe.Pointer(a))
}

// part adds queries, keys or values to o.args.heads.
func (o *Ops) part(dst, src, w, b engine.Tensor, kind, rope C.int) {
	const op = "QKNormRoPE"
	p := &o.args.heads.part[o.args.heads.parts]
	o.args.heads.parts++
	p.dst, p.src, p.w, p.b, p.kind, p.rope = address(op, dst), address(op, src), address(op, w), address(op, b), kind, rope
	for i := range 3 {
		p.ds[i], p.ss[i] = C.pb_i64(dst.Stride(i)), C.pb_i64(src.Stride(i))
	}
}
