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
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/lt"
)

// matmul is a product by cuBLASLt: act(x w^T + c + bias), written to y or to scratch memory, for one item or for all as
// one. With adapters, their product is computed first into the same place and is c.
type matmul struct {
	shape, low lt.Shape // low: of the low-rank parts of adapters with their Up factors; k is 0 without adapters
	items      int      // calls, one per item of the batch; 1 if all items are one matrix
	aside      bool     // the product goes to scratch memory; y = residual + gate * (product + bias, if act is none)
	added      bool     // the residual is c
	bias       bool     // the product has one
}

// planOf returns how a product goes through cuBLASLt; ok is false if it does not. The rows of all operands start at
// multiples of 16 bytes. Products that the library has no epilogue for, whose operands are not all bf16, or that have
// few rows stay with our kernels.
func (dev *Device) planOf(p *engine.Product) (pl matmul, ok bool) {
	narrow := p.XType == engine.BF16 && p.YType == engine.BF16 && p.Weight == engine.BF16
	if dev.lt == nil || !lt.Has(p.Act) || !narrow || p.Batch*p.Rows <= fewRows || p.N*p.K == 0 || p.Gated && !p.Added {
		return pl, false
	}
	pl.aside = p.Gated || p.Added && (p.Act != engine.ActNone || p.Ranks > 0)
	pl.added = p.Added && !pl.aside
	pl.bias = p.Bias && !(pl.aside && p.Act == engine.ActNone)
	y, c := p.Y, p.Residual
	if pl.aside {
		y = [2]int{p.Rows * rowStride(p.N), rowStride(p.N)}
	}
	if !pl.added {
		c = y
	}
	pl.items = 1
	rows := p.Batch * p.Rows
	for _, s := range [][2]int{p.X, y, c} {
		if s[1]%rowAlign != 0 || p.Batch > 1 && s[0]%rowAlign != 0 {
			return pl, false
		}
		if p.Batch > 1 && s[0] != p.Rows*s[1] {
			pl.items, rows = p.Batch, p.Rows
		}
	}
	pl.shape = lt.Shape{
		M: rows, N: p.N, K: p.K, LDX: max(p.X[1], p.K), LDW: rowStride(p.K), LDC: c[1], LDY: y[1], Act: p.Act, Bias: pl.bias,
	}
	if p.Ranks > 0 {
		ld := rowStride(p.Ranks)
		pl.low = lt.Shape{M: rows, N: p.N, K: p.Ranks, LDX: ld, LDW: ld, LDC: c[1], LDY: y[1]}
	}
	return pl, p.X[1] >= p.K && y[1] >= p.N && c[1] >= p.N
}

// planRoom returns the scratch bytes of a planned product: workspace, what adapters need, the bias in bf16, and the
// product if it is written there.
func (dev *Device) planRoom(p *engine.Product, pl *matmul) int {
	bytes := room(dev.lt.Space) + adapterRoom(p.Batch*p.Rows, p.N, p.Ranks, engine.BF16.Size())
	if pl.bias {
		bytes += room(2 * p.N)
	}
	if pl.aside {
		bytes += room(2 * p.Batch * p.Rows * rowStride(p.N))
	}
	return bytes
}

// route says how a product is computed.
type route struct {
	p       engine.Product
	plan    matmul
	a, low  *lt.Matmul // a nil: our kernels; low: of adapters
	scratch int        // bytes
}

// routeOf chooses the route of a product whose operands start at multiples of 16 bytes.
func (o *Ops) routeOf(p *engine.Product) (r route) {
	r.p, r.scratch = *p, ownRoom(p)
	pl, ok := o.dev.planOf(p)
	if !ok || o.fixed {
		return r
	}
	a, low := o.algorithm(pl.shape), (*lt.Matmul)(nil)
	if a != nil && p.Ranks > 0 {
		low = o.algorithm(pl.low)
	}
	if a != nil && (p.Ranks == 0 || low != nil) {
		r.plan, r.a, r.low, r.scratch = pl, a, low, o.dev.planRoom(p, &pl)
	}
	return r
}

// route chooses the route of any product.
func (o *Ops) route(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) route {
	p := engine.ProductOf(y, x, w, e)
	if o.dev.lt == nil || !inSteps(&x, rowAlign) || !inSteps(&y, rowAlign) || !inSteps(&e.Residual, rowAlign) {
		return route{p: p, scratch: ownRoom(&p)}
	}
	return o.routeOf(&p)
}

// algorithm returns cuBLASLt's plan for a shape, nil if it has none that agrees with our kernel or there is no memory
// to compare them.
func (o *Ops) algorithm(s lt.Shape) *lt.Matmul { return o.products.of(o, s, o.choose) }

// choose asks the library for an algorithm and compares it with our kernel.
func (o *Ops) choose(s *lt.Shape) *lt.Matmul {
	a, err := o.dev.lt.Plan(s)
	if a == nil {
		if err != nil { // asking touches no device, so whatever failed is no reason to stop
			o.chosen.unplannedProducts++
		}
		return nil
	}
	if err = o.checkProduct(s, a); err == nil {
		return a
	}
	o.dev.lt.Drop(a)
	if errors.Is(err, errDisagrees) {
		o.chosen.refused++
	}
	return nil
}

// byLibrary computes a product by cuBLASLt. The caller has prepared the scratch memory of its route.
func (o *Ops) byLibrary(op string, r *route, y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	p, pl := &r.p, &r.plan
	c := lt.Call{
		X: driver.Address(op, x), W: w.Base.Buf.Dev, Y: driver.Address(op, y), Alpha: 1,
		Workspace: o.mem.take(o.dev.lt.Space),
	}
	switch {
	case pl.bias && !w.BiasBF16.IsZero():
		c.Bias = driver.Address(op, w.BiasBF16)
	case pl.bias:
		c.Bias = o.mem.take(2 * p.N)
		o.convert(c.Bias, driver.Address(op, w.Bias), p.N, engine.BF16, engine.F32)
	}
	strides := [3]int{p.X[0], p.Y[0], p.Residual[0]} // of items: x, y, c
	if pl.aside {
		c.Y = o.mem.take(2 * p.Batch * p.Rows * rowStride(p.N))
		strides[1] = p.Rows * rowStride(p.N)
	}
	if pl.added {
		c.C, c.Beta = driver.Address(op, e.Residual), 1
	} else {
		c.C, strides[2] = c.Y, strides[1]
	}
	if r.low != nil {
		f := o.adapters(leftOf(op, x), w, engine.BF16)
		low := lt.Call{X: uint64(f.x), W: uint64(f.w), Y: c.Y, C: c.Y, Alpha: 1, Workspace: c.Workspace}
		o.items(r.low, low, pl.items, [3]int{int(f.bs), strides[1], strides[1]})
		c.Beta = 1
	}
	o.items(r.a, c, pl.items, strides)
	if pl.aside {
		o.apart(op, c.Y, y, w, e, p)
	}
	o.chosen.library++
}

// items enqueues a product for each of the items, whose x, y and c start strides elements apart.
func (o *Ops) items(a *lt.Matmul, c lt.Call, items int, strides [3]int) {
	for range items {
		o.dev.lt.Multiply(o.Stream, a, &c)
		c.X, c.Y, c.C = c.X+uint64(2*strides[0]), c.Y+uint64(2*strides[1]), c.C+uint64(2*strides[2])
	}
}

// apart computes y = residual + gate * (product + bias) of a product in scratch memory. With an activation, the bias is
// already in the product.
func (o *Ops) apart(op string, product uint64, y engine.Tensor, w *engine.Weight, e engine.Epilogue,
	p *engine.Product,
) {
	var bias engine.Tensor
	if p.Bias && p.Act == engine.ActNone {
		bias = w.Bias
	}
	a := o.into(op, C.PB_GATED, y, e.Residual, e.Gate, bias)
	a.bias = address(op, bias)
	a.a, a.gate = viewOf(op, &a.r, e.Residual), modulationOf(op, e.Gate, p.Batch)
	a.b = C.struct_pb_view{at: C.pb_u64(product), div: 1}
	outer := y.Dims() - 1
	a.b.stride[slot(outer-1, outer)] = C.pb_i64(rowStride(p.N))
	if outer == 2 {
		a.b.stride[0] = C.pb_i64(p.Rows * rowStride(p.N))
	} else {
		a.gate.stride[0] = 0 // one item, whose rows take the place of the items
	}
	o.pointwise(y.DType)
}

// convert converts n neighboring elements.
func (o *Ops) convert(dst, src uint64, n int, to, from engine.DType) {
	o.args.pack = C.struct_pb_pack{
		dst: C.pb_u64(dst), src: C.pb_u64(src), rows: 1, k: C.pb_i64(n), width: C.pb_i64(n), dst_ld: C.pb_i64(n),
		src_ld: C.pb_i64(n), from: C.int(from), to: C.int(to), scale: 1,
	}
	o.flat(kPack, n, unsafe.Pointer(&o.args.pack))
}

// checkProduct computes a product of the shape, with every operand that it has, by the library and by our kernel and
// compares the results on the device. All operands are pseudorandom and unlike each other, and sums are scaled to about
// 1 at any depth, so a missing operand shows. It waits for the stream.
func (o *Ops) checkProduct(s *lt.Shape, a *lt.Matmul) error {
	m, n, k := s.M, s.N, s.K
	operands := []int{m * s.LDX, n * s.LDW, m * s.LDC, n} // elements of x, w, c and the bias
	part, done, err := o.borrow(2*operands[0], 2*operands[1], 2*operands[2], 2*operands[3], 2*m*s.LDY, 2*m*s.LDY, 4*n,
		o.dev.lt.Space, m*n, 4*m)
	if err != nil {
		return err
	}
	defer done()
	for kind, n := range operands {
		o.noise(part[kind], n, kind)
	}
	ours, theirs, ones := part[4], part[5], part[6]
	c := lt.Call{
		X: part[0], W: part[1], C: part[2], Y: theirs, Workspace: part[7], Alpha: 3 / float32(math.Sqrt(float64(k))),
		Beta: 1,
	}
	l := left{at: C.pb_u64(c.X), ls: C.pb_i64(s.LDX), batch: 1, rows: m, dtype: engine.BF16, vec: 1}
	args := C.struct_pb_linear{
		y: C.pb_u64(ours), yls: C.pb_i64(s.LDY), gate_per: 1, y_type: C.int(engine.BF16), alpha: C.float(c.Alpha),
		res: C.pb_u64(c.C), rls: C.pb_i64(s.LDC),
	}
	if s.Bias {
		c.Bias, args.bias = part[3], C.pb_u64(ones)
		o.convert(ones, part[3], n, engine.F32, engine.BF16)
	}
	o.multiply(&args, l, right{at: C.pb_u64(c.W), ld: s.LDW, n: n, k: k, dtype: engine.BF16})
	o.dev.lt.Multiply(o.Stream, a, &c)
	rows := func(at uint64) engine.Tensor {
		return engine.NewTensor(engine.Buf{Dev: at}, engine.BF16, 1, m, s.LDY).Slice(2, 0, n)
	}
	if s.Act != engine.ActNone { // the library applies it after adding c
		o.Activate(rows(ours), rows(ours), s.Act)
	}
	diff, whole := o.difference(rows(ours), rows(theirs), ones, part[8], part[9])
	const bound = 1.0 / 64 // each rounds to bf16, an activation may be an approximation
	if o.Err() == nil && !(diff <= bound*whole) {
		return fmt.Errorf("%w: m %d, n %d, k %d: by %.3g of %.3g", errDisagrees, m, n, k, diff, whole)
	}
	return o.Err()
}
