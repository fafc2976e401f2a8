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

// roundedRoom returns the scratch bytes of a product with int8 weights, without those of adapterRoom: the rows of x in
// 8 bits with their scales, and the product of the adapters if y cannot hold it, because y may also be the residual.
func roundedRoom(p *engine.Product) int {
	if p.Weight != engine.I8 {
		return 0
	}
	rows := p.Batch * p.Rows
	bytes := room(rows*byteRow(p.K)) + room(4*rows)
	if p.Ranks > 0 && p.Added {
		bytes += room(rows * rowStride(p.N) * p.YType.Size())
	}
	return bytes
}

// byRounding computes a product with int8 weights, whose epilogue is in a: the rows of x are rounded to 8 bits in the
// basis of the weights, and the integer sums, which are exact, are multiplied by both scales (see ref.QuantiseRow). The
// contribution of adapters is computed first, by products of its own.
func (o *Ops) byRounding(a *C.struct_pb_linear, l left, w *engine.Weight, y engine.Tensor) {
	rows, ld := l.batch*l.rows, byteRow(w.K())
	if w.Ranks() > 0 {
		o.beside(a, l, w, y)
	}
	r := &o.args.round
	*r = C.struct_pb_round{
		x: l.at, q: C.pb_u64(o.mem.take(rows * ld)), scales: C.pb_u64(o.mem.take(4 * rows)), bs: l.bs, ls: l.ls,
		batch: C.int(l.batch), rows: C.int(l.rows), k: C.int(w.K()), ld: C.int(ld), group: C.int(w.Base.Rotated),
	}
	o.launch(typed(kRound, l.dtype), rows, 1, 1, threads, roundShared, unsafe.Pointer(r))
	// the kernel counts columns in pairs
	a.f[0] = C.struct_pb_factor{
		x: r.q, w: C.pb_u64(w.Base.Buf.Dev), bs: C.pb_i64(l.rows * ld / 2), ls: C.pb_i64(ld / 2),
		ld: C.pb_i64((ld + factorRoom) / 2), k: C.int(ld / 2), w_type: C.int(engine.I8), vec: 1,
	}
	a.scales, a.batch, a.rows, a.n = r.scales, C.int(l.batch), C.int(l.rows), C.int(w.N())
	o.args.linear = *a
	k, t := typed(kLinear8, l.dtype), tiles[kLinear64-kLinear256]
	if o.kernelFor(l, engine.BF16, w.N()) == kLinear256 {
		k, t = kLinear8Wide, tiles[0]
	}
	o.launch(k, (rows+t.m-1)/t.m, (w.N()+t.n-1)/t.n, 1, t.threads, kernels[k].shared, unsafe.Pointer(&o.args.linear))
}

// beside computes the product of the adapters into y, or into scratch memory if y may be the residual, and makes a add
// it.
func (o *Ops) beside(a *C.struct_pb_linear, l left, w *engine.Weight, y engine.Tensor) {
	a.plus, a.pbs, a.pls = a.y, a.ybs, a.yls
	if a.res != 0 {
		ld := rowStride(w.N())
		a.plus = C.pb_u64(o.mem.take(l.batch * l.rows * ld * y.DType.Size()))
		a.pbs, a.pls = C.pb_i64(l.rows*ld), C.pb_i64(ld)
	}
	f := o.adapters(l, w, l.dtype)
	product := C.struct_pb_linear{
		y: a.plus, ybs: a.pbs, yls: a.pls, gate_per: 1, y_type: a.y_type, alpha: 1, vec: a.vec,
	}
	o.multiply(&product, left{
		at: f.x, bs: f.bs, ls: f.ls, batch: l.batch, rows: l.rows, dtype: l.dtype, vec: 1,
	}, right{at: f.w, ld: int(f.ld), n: w.N(), k: w.Ranks(), dtype: l.dtype})
}
