package cpu

/*
#include "cpu.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"patchbay/engine"
)

// Linear computes y = e.Residual + e.Gate * e.Act(x W^T + bias + adapters); see engine.Ops. At most 31 adapters.
func (o *Ops) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	engine.CheckLinear(y, x, w, e)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	o.wantLayout("Linear", w, w.K())
	in := o.weighed(x, w.Base)
	rows := rowsOfProduct(x, y, e.Residual, e.Gate)
	g := C.pb_gemm{
		batch: C.int64_t(rows.batch), rows: C.int64_t(rows.rows), n: C.int64_t(w.N()),
		y: o.addr("Linear", y), res: o.addr("Linear", e.Residual), gate: o.addr("Linear", e.Gate),
		scale: C.float(scaleOf(w.Base)), act: C.int32_t(e.Act), gate_per: 1,
		y_dtype: C.int64_t(y.DType),
	}
	if !e.NoBias {
		g.bias = o.addr("Linear", w.Bias)
	}
	g.y_bs, g.y_ls = rows.strides(y)
	g.res_bs, g.res_ls = rows.strides(e.Residual)
	if !e.Gate.IsZero() {
		g.gate_s = C.int64_t(e.Gate.Stride(0))
		g.gate_per = C.int64_t(rows.batch / e.Gate.Dim(0))
		if e.Gate.Dim(0) == 1 {
			g.gate_per = C.int64_t(rows.batch)
		}
	}
	o.segs[0] = C.pb_seg{
		x: o.addr("Linear", in), w: panelAddr(w.Base), k: C.int64_t(w.K()), dtype: C.int32_t(w.Base.DType),
		x_dtype: C.int32_t(x.DType), blocks: C.int64_t(w.Base.Blocks.Form()),
		rotated: C.int64_t(w.Base.Rotated),
	}
	o.segs[0].bs, o.segs[0].ls = rows.strides(in)
	o.down[0] = o.segs[0]
	o.down[0].x = o.addr("Linear", x)
	o.down[0].bs, o.down[0].ls = rows.strides(x)
	if w.Base.DType == engine.I8 {
		g.scales = o.rounded(&o.segs[0], rows, w.Base.Rotated)
	}
	o.adapters("Linear", &g, w, func(t C.uint64_t, a engine.Adapter) {
		d := C.pb_gemm{
			batch: g.batch, rows: g.rows, n: C.int64_t(a.Down.N), y: t, y_ls: C.int64_t(a.Down.N),
			y_bs:  g.rows * C.int64_t(a.Down.N),
			scale: adapterScale(w, a), gate_per: 1,
		}
		o.linear(d, o.innerFactor(a))
	})
	o.linear(g, o.segs[:g.nseg])
}

// weighed returns x times the factors of inputs of p in scratch memory, or x itself if it has none.
func (o *Ops) weighed(x engine.Tensor, p *engine.Packed) engine.Tensor {
	if p.Head == headerBytes || x.Len() == 0 {
		return x
	}
	shape := make([]int, x.Dims())
	for i := range shape {
		shape[i] = x.Dim(i)
	}
	memory := func(b *block, bytes int) engine.Buf {
		return engine.Buf{Host: unsafe.Slice((*byte)(b.need(bytes)), bytes)}
	}
	size, k := x.DType.Size(), x.Dim(-1)
	y := engine.NewTensor(memory(&o.mem.words, x.Len()*size), x.DType, shape...)
	for i := range shape[:len(shape)-1] {
		shape[i] = 1
	}
	zero := engine.NewTensor(memory(&o.mem.zeros, k*size), x.DType, shape...)
	by := engine.NewTensor(engine.Buf{Host: p.Buf.Host[headerBytes:]}, engine.F32, k)
	e, s := o.into("Linear", C.PB_GATED_ADD, y, 1) // zero + by*x
	e.a, e.b, e.c = s.view(zero), s.view(x), s.vector(by)
	o.rowWise(e, s)
	return y
}

// leading describes the rows of a product as [batch, rows].
type leading struct{ batch, rows int }

// rowsOfProduct views [L, E] or [B, L, E] operands as [batch, rows], merging B and L where the strides of every operand
// allow it and no gate distinguishes items.
func rowsOfProduct(x, y, res, gate engine.Tensor) leading {
	if x.Dims() == 2 {
		return leading{1, x.Dim(0)}
	}
	l := leading{x.Dim(0), x.Dim(1)}
	if !gate.IsZero() && gate.Dim(0) > 1 {
		return l
	}
	for _, t := range []engine.Tensor{x, y, res} {
		if !t.IsZero() && l.batch > 1 && l.rows > 1 && t.Stride(0) != l.rows*t.Stride(1) {
			return l
		}
	}
	if l.rows == 1 {
		return l
	}
	return leading{1, l.batch * l.rows}
}

// strides returns the batch and row strides of an operand, 0 when it is absent.
func (l leading) strides(t engine.Tensor) (bs, ls C.int64_t) {
	switch t.Dims() {
	case 2:
		return 0, C.int64_t(t.Stride(0))
	case 3:
		return C.int64_t(t.Stride(0)), C.int64_t(t.Stride(1))
	}
	return 0, 0
}

// adapterScale returns the factor of an adapter's inner result that gives a.Scale * down * up once the epilogue has
// applied the scale of the base.
func adapterScale(w *engine.Weight, a engine.Adapter) C.float {
	return C.float(a.Scale * scaleOf(a.Down) * scaleOf(a.Up) / scaleOf(w.Base))
}

// innerFactor returns the factor of the product of the current x, which is in o.down, with an adapter's Down.
func (o *Ops) innerFactor(a engine.Adapter) []C.pb_seg {
	o.down[0].w, o.down[0].dtype, o.down[0].blocks = panelAddr(a.Down), C.int32_t(a.Down.DType), 0
	return o.down[:]
}

// adapters computes t = scale * x Down^T of every adapter by calling down (t is contiguous f32 [batch, rows, R]) and
// adds t Up^T to the factors of g.
func (o *Ops) adapters(op string, g *C.pb_gemm, w *engine.Weight, down func(t C.uint64_t, a engine.Adapter)) {
	g.nseg = 1
	if len(w.Adapters) >= len(o.segs) {
		panic(&engine.ShapeError{
			Op: op, Rule: fmt.Sprintf("at most %d adapters a weight", len(o.segs)-1), Shapes: w.Name,
		})
	}
	rows, total := int(g.batch*g.rows), 0
	for _, a := range w.Adapters {
		total += roundUp(4*rows*a.Down.N, 64)
	}
	if total == 0 {
		return
	}
	t := numOf(o.mem.small.need(total))
	for i, a := range w.Adapters {
		down(t, a)
		r := C.int64_t(a.Down.N)
		o.segs[i+1] = C.pb_seg{x: t, bs: g.rows * r, ls: r, w: panelAddr(a.Up), k: r, dtype: C.int32_t(a.Up.DType)}
		t += C.uint64_t(roundUp(4*rows*a.Down.N, 64))
	}
	g.nseg = C.int64_t(1 + len(w.Adapters))
}

// wantLayout panics unless w and its adapters were packed for this level and for taps of c channels.
func (o *Ops) wantLayout(op string, w *engine.Weight, c int) {
	o.wantPacked(op, w.Name, w.Base, c)
	for _, a := range w.Adapters {
		o.wantPacked(op, w.Name, a.Down, c)
		o.wantPacked(op, w.Name, a.Up, a.Up.K)
	}
}

func (o *Ops) wantPacked(op, name string, p *engine.Packed, c int) {
	if p.Layout != o.layout() {
		panic(&engine.ShapeError{Op: op, Rule: fmt.Sprintf("weight %s is packed as %q, %s needs %q", name, p.Layout, o.Name(),
			o.layout()), Shapes: ""})
	}
	// Pairs of channels do not cross taps, so the number of channels per tap matters only if it is odd.
	if had := int(headerOf(p).channels); p.DType == engine.BF16 && p.N*p.K > 0 && had != c && (had%2 != 0 || c%2 != 0) {
		panic(&engine.ShapeError{Op: op, Rule: fmt.Sprintf("weight %s is packed for taps of %d channels, x has %d", name,
			had, c), Shapes: ""})
	}
}
