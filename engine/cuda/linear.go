//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"patchbay/engine"
)

// left is the left factor of a product: batch times rows rows of k elements.
type left struct {
	at          C.pb_u64
	bs, ls      C.pb_i64 // strides of batch and row
	batch, rows int
	dtype       engine.DType
	vec         C.int // rows start at multiples of 16 bytes
}

// fewRows is the most rows for which a product takes one warp per feature; see few in linear.cu.
const fewRows = 8

func (o *Ops) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	engine.CheckLinear(y, x, w, e)
	if y.Len() == 0 {
		return
	}
	wantLayout("Linear", w)
	if w.Base.Blocks != nil && !o.few(y.Len()/w.N()) {
		o.byWidening(y, x, w, e)
		return
	}
	r := o.route(y, x, w, e)
	if err := o.mem.need(r.scratch); err != nil {
		o.Note(err)
		return
	}
	o.multiplied("Linear", &r, y, x, w, e)
}

// multiplied computes a product by its route, whose scratch memory the caller has prepared.
func (o *Ops) multiplied(op string, r *route, y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	if r.a != nil {
		o.byLibrary(op, r, y, x, w, e)
		return
	}
	o.chosen.kernels++
	if w.Base.DType == engine.F16 && x.DType == engine.BF16 {
		o.chosen.rounded++
	}
	l := leftOf(op, x)
	a := C.struct_pb_linear{
		y: address(op, y), res: address(op, e.Residual), gate: address(op, e.Gate), gate_per: 1, act: C.int(e.Act),
		y_type: C.int(y.DType), alpha: 1, vec: pieces(y, e.Residual, e.Gate),
	}
	if !e.NoBias && !w.Bias.IsZero() {
		a.bias = address(op, w.Bias)
		a.vec &= pieces(w.Bias)
	}
	a.ybs, a.yls = leadStrides(y)
	a.rbs, a.rls = leadStrides(e.Residual)
	if !e.Gate.IsZero() {
		a.gate_s, a.gate_per = C.pb_i64(e.Gate.Stride(0)), C.int(l.batch/e.Gate.Dim(0))
	}
	if w.Base.DType == engine.I8 {
		o.byRounding(&a, l, w, y)
		return
	}
	if w.Ranks() > 0 {
		up := engine.BF16
		if o.kernelFor(l, w.Base.DType, w.N()) < kLast { // the kernels that widen any type
			up = engine.F32
		}
		a.f[1] = o.adapters(l, w, up)
	}
	o.product(&a, l, w.Base)
}

// leftOf views x [B, L, K] or [L, K] as a left factor.
func leftOf(op string, x engine.Tensor) left {
	l := left{at: address(op, x), batch: 1, rows: x.Dim(0), dtype: x.DType}
	if x.Dims() == 3 {
		l.batch, l.rows = x.Dim(0), x.Dim(1)
	}
	l.bs, l.ls = leadStrides(x)
	if inSteps(&x, 16/x.DType.Size()) {
		l.vec = 1
	}
	return l
}

// leadStrides returns the strides of batch and row of [B, L, E] or [L, E], 0 for an absent tensor.
func leadStrides(t engine.Tensor) (bs, ls C.pb_i64) {
	switch t.Dims() {
	case 2:
		return 0, C.pb_i64(t.Stride(0))
	case 3:
		return C.pb_i64(t.Stride(0)), C.pb_i64(t.Stride(1))
	}
	return 0, 0
}

// wantLayout panics unless w and its adapters were packed by this package.
func wantLayout(op string, w *engine.Weight) {
	check := func(p *engine.Packed) {
		if p.Layout != layout {
			rule := fmt.Sprintf("weight %s is packed as %q, cuda needs %q", w.Name, p.Layout, layout)
			panic(&engine.ShapeError{Op: op, Rule: rule, Shapes: ""})
		}
	}
	check(w.Base)
	for i := range w.Adapters {
		check(w.Adapters[i].Down)
		check(w.Adapters[i].Up)
	}
}

// adapterRoom returns the scratch bytes that adapters takes for a product of rows with n features, in elements of size
// bytes.
func adapterRoom(rows, n, ranks, size int) int {
	if ranks == 0 {
		return 0
	}
	return room(rows*rowStride(ranks)*size) + room(n*rowStride(ranks)*4)
}

// ownRoom returns the scratch bytes of a product by our kernels.
func ownRoom(p *engine.Product) int {
	return adapterRoom(p.Batch*p.Rows, p.N, p.Ranks, p.XType.Size()) + roundedRoom(p)
}

// adapters computes the second pair of factors of a product: the low-rank parts of all adapters side by side in scratch
// memory, and likewise their Up factors in type upType, so that y gets x W^T + [s1 x D1^T, s2 x D2^T, ..] [U1, U2,
// ..]^T.
func (o *Ops) adapters(l left, w *engine.Weight, upType engine.DType) C.struct_pb_factor {
	r := w.Ranks()
	ld, m := rowStride(r), l.batch*l.rows
	low, up := o.mem.take(m*ld*l.dtype.Size()), o.mem.take(w.N()*ld*4)
	f := C.struct_pb_factor{
		x: C.pb_u64(low), w: C.pb_u64(up), bs: C.pb_i64(l.rows * ld), ls: C.pb_i64(ld), ld: C.pb_i64(ld), k: C.int(r),
		w_type: C.int(upType), vec: 1,
	}
	at := 0
	for i := range w.Adapters {
		ad := &w.Adapters[i]
		d := C.struct_pb_linear{
			y: C.pb_u64(low + uint64(at*l.dtype.Size())), ybs: f.bs, yls: f.ls, gate_per: 1, y_type: C.int(l.dtype),
			alpha: C.float(ad.Scale),
		}
		o.product(&d, l, ad.Down)
		o.args.pack = C.struct_pb_pack{
			dst: C.pb_u64(up + uint64(at*upType.Size())), src: C.pb_u64(ad.Up.Buf.Dev), rows: C.pb_i64(w.N()),
			k: C.pb_i64(ad.Up.K), width: C.pb_i64(ad.Up.K), dst_ld: C.pb_i64(ld), src_ld: C.pb_i64(rowStride(ad.Up.K)),
			from: C.int(ad.Up.DType), to: f.w_type, scale: 1,
		}
		o.flat(kPack, w.N()*ad.Up.K, unsafe.Pointer(&o.args.pack))
		at += ad.Down.N
	}
	return f
}

// product launches one product; a holds the epilogue and, where there is one, the second pair.
func (o *Ops) product(a *C.struct_pb_linear, l left, w *engine.Packed) {
	r := right{at: C.pb_u64(w.Buf.Dev), ld: rowStride(w.K), n: w.N, k: w.K, dtype: w.DType}
	if w.Blocks != nil {
		r.ld, r.form = w.PieceBytes, w.Blocks.Form()
	}
	o.multiply(a, l, r)
}

// right is the right factor of a product, [n, k] in rows that start ld elements apart, at multiples of 16 bytes. If it
// has a form (engine.Blocks.Form), it is in blocks, ld counts bytes, and only products with few rows can use it.
type right struct {
	at       C.pb_u64
	ld, n, k int
	dtype    engine.DType
	form     int
}

// multiply launches the product of any two factors.
func (o *Ops) multiply(a *C.struct_pb_linear, l left, r right) {
	if r.n == 0 {
		return
	}
	a.f[0] = C.struct_pb_factor{
		x: l.at, w: r.at, bs: l.bs, ls: l.ls, ld: C.pb_i64(r.ld), k: C.int(r.k), w_type: C.int(r.dtype), vec: l.vec,
	}
	if r.form > 0 {
		a.f[0].w_type = C.PB_BLOCKS + C.int(r.form)
	}
	a.batch, a.rows, a.n = C.int(l.batch), C.int(l.rows), C.int(r.n)
	o.args.linear = *a
	args, m := unsafe.Pointer(&o.args.linear), l.batch*l.rows
	switch k := o.kernelFor(l, r.dtype, r.n); k {
	case kLinearFew, kLinearFew + 1:
		if r.form > 0 {
			k += kFewBlocks - kLinearFew
		}
		o.launch(k, (r.n+threads/32-1)/(threads/32), 1, 1, threads, 0, args)
	case kLinearAny, kLinearAny + 1:
		o.launch(k, (m+63)/64, (r.n+63)/64, 1, threads, 2*16*(64+4)*4, args)
	default:
		t := tiles[k-kLinear256]
		o.launch(k, (m+t.m-1)/t.m, (r.n+t.n-1)/t.n, 1, t.threads, kernels[k].shared, args)
	}
}

// tiles describes the tensor-core kernels from kLinear256 on: rows and features of a block, and its threads.
var tiles = [...]struct{ m, n, threads int }{{128, 256, 256}, {128, 128, 128}, {64, 64, 128}, {128, 128, 256}}

func (o *Ops) Fix(on bool) { o.fixed = on }

// few reports whether a product of so many rows takes one warp per feature.
func (o *Ops) few(rows int) bool { return rows <= fewRows && !o.fixed }

// kernelFor chooses the kernel of a product: the largest tile that gives every multiprocessor one.
func (o *Ops) kernelFor(l left, weight engine.DType, n int) kernel {
	m := l.batch * l.rows
	blocks := func(k kernel) int {
		t := tiles[k-kLinear256]
		return (m + t.m - 1) / t.m * ((n + t.n - 1) / t.n)
	}
	switch {
	case o.few(m):
		return typed(kLinearFew, l.dtype)
	case l.dtype == engine.F32 || weight == engine.F32:
		return typed(kLinearAny, l.dtype)
	case weight == engine.F16:
		return kLinearF16
	case blocks(kLinear256) >= o.dev.Multiprocessors && !o.fixed:
		return kLinear256
	case blocks(kLinear128) >= o.dev.Multiprocessors || o.fixed:
		return kLinear128
	}
	return kLinear64
}
