//go:build cgo

package cuda

/*
#cgo noescape pb_lt_matmul
#cgo nocallback pb_lt_matmul
#include "lt.h"
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cuda/library"
)

// Use makes devices that are opened from now on multiply by cuBLASLt and attend by cuDNN where a Search finds them, and
// tells of both. A cuDNN that does not work is left alone.
func (d *Driver) Use(s *library.Search) (products, attention Found, err error) {
	handle, products := d.open(s, library.CUBLASLt())
	if handle != nil {
		err = try(func(e *C.pb_error) { C.pb_lt_load(handle, &d.lt, e) })
	}
	d.dnn, attention = d.openDNN(s)
	return products, attention, err
}

// blas is the handle of cuBLASLt on a device; the zero value multiplies nothing.
type blas struct {
	c     *C.pb_lt_device
	space int // bytes of workspace
}

// open makes the handle, if the driver has the library.
func (b *blas) open(d *Driver, dev *Device) error {
	if d.lt == nil {
		return nil
	}
	const hopper = 9
	b.space = 4 << 20 // what NVIDIA advises
	if dev.Major >= hopper {
		b.space = 32 << 20
	}
	return try(func(e *C.pb_error) { C.pb_lt_open(d.lt, dev.c, &b.c, e) })
}

// close gives the handle back.
func (b *blas) close() error {
	if b.c == nil {
		return nil
	}
	return try(func(e *C.pb_error) { C.pb_lt_close(b.c, e) })
}

// plan is a product by cuBLASLt: y, or a matrix aside of it, = act(x w^T + c + bias), for one item or for all as one.
// With adapters their product is made first, where this one goes, and is c.
type plan struct {
	shape, low C.pb_lt_shape // low: of the low-rank parts of adapters with their Up factors; k is 0 without adapters
	items      int           // calls, one an item of the batch; 1 where all items are one matrix
	aside      bool          // the product goes to scratch memory; y = residual + gate * (product + bias, if act is none)
	added      bool          // the residual is c
	bias       bool          // of the product
}

// planOf says how a product goes through cuBLASLt; ok false: it does not. The rows of all operands start at multiples
// of 16 bytes. What the library has no epilogue for, narrower factors, and few rows stay with our kernels.
func (b *blas) planOf(p *engine.Product) (pl plan, ok bool) {
	epilogue := epilogueOf(p.Act)
	narrow := p.XType == engine.BF16 && p.YType == engine.BF16 && p.Weight == engine.BF16
	if b.c == nil || epilogue == 0 || !narrow || p.Batch*p.Rows <= fewRows || p.N*p.K == 0 || p.Gated && !p.Added {
		return pl, false
	}
	pl.aside = p.Gated || p.Added && (p.Act != engine.ActNone || p.Ranks > 0)
	pl.added = p.Added && !pl.aside
	pl.bias = p.Bias && !(pl.aside && p.Act == engine.ActNone)
	if pl.bias {
		epilogue = epilogue&^C.PB_LT_DEFAULT | C.PB_LT_BIAS
	}
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
	pl.shape = C.pb_lt_shape{
		m: C.int(rows), n: C.int(p.N), k: C.int(p.K), epilogue: epilogue, ldx: C.int64_t(max(p.X[1], p.K)),
		ldw: C.int64_t(rowStride(p.K)), ldc: C.int64_t(c[1]), ldy: C.int64_t(y[1]),
	}
	if p.Ranks > 0 {
		ld := C.int64_t(rowStride(p.Ranks))
		pl.low = pl.shape
		pl.low.k, pl.low.epilogue, pl.low.ldx, pl.low.ldw = C.int(p.Ranks), C.PB_LT_DEFAULT, ld, ld
	}
	return pl, p.X[1] >= p.K && y[1] >= p.N && c[1] >= p.N
}

// room is the scratch memory of a planned product: workspace, what adapters need, the bias in bf16, and the product
// where it stands aside.
func (b *blas) room(p *engine.Product, pl *plan) int {
	bytes := room(b.space) + adapterRoom(p.Batch*p.Rows, p.N, p.Ranks, engine.BF16.Size())
	if pl.bias {
		bytes += room(2 * p.N)
	}
	if pl.aside {
		bytes += room(2 * p.Batch * p.Rows * rowStride(p.N))
	}
	return bytes
}

// route is the way that a product takes.
type route struct {
	p       engine.Product
	plan    plan
	a, low  *C.pb_lt_plan // a nil: our kernels; low: of adapters
	scratch int           // bytes
}

// routeOf chooses the way of a product whose operands start at multiples of 16 bytes.
func (o *Ops) routeOf(p *engine.Product) (r route) {
	r.p, r.scratch = *p, ownRoom(p)
	pl, ok := o.dev.blas.planOf(p)
	if !ok || o.fixed {
		return r
	}
	a, low := o.algorithm(pl.shape), (*C.pb_lt_plan)(nil)
	if a != nil && p.Ranks > 0 {
		low = o.algorithm(pl.low)
	}
	if a != nil && (p.Ranks == 0 || low != nil) {
		r.plan, r.a, r.low, r.scratch = pl, a, low, o.dev.blas.room(p, &pl)
	}
	return r
}

// route chooses the way of any product.
func (o *Ops) route(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) route {
	p := engine.ProductOf(y, x, w, e)
	if o.dev.blas.c == nil || !inSteps(&x, rowAlign) || !inSteps(&y, rowAlign) || !inSteps(&e.Residual, rowAlign) {
		return route{p: p, scratch: ownRoom(&p)}
	}
	return o.routeOf(&p)
}

// algorithm returns what cuBLASLt does for a shape, nil where it has nothing that agrees with our kernel, or there is
// no memory to find out. It is looked up, and compared, once.
func (o *Ops) algorithm(s C.pb_lt_shape) *C.pb_lt_plan {
	a, known := o.plans[s]
	if !known && o.graphs.within != nil { // comparing waits
		o.Note(errMoved)
	} else if !known && o.Err() == nil {
		a = o.choose(s)
		if o.Err() == nil {
			o.plans[s] = a
		}
	}
	return a
}

// choose asks the library for an algorithm and compares it.
func (o *Ops) choose(s C.pb_lt_shape) (a *C.pb_lt_plan) {
	o.Note(try(func(e *C.pb_error) { C.pb_lt_plan_new(o.dev.blas.c, &s, C.uint64_t(o.dev.blas.space), &a, e) }))
	if a == nil {
		return nil
	}
	err := o.agrees(s, a)
	if err == nil {
		return a
	}
	C.pb_lt_plan_free(o.dev.blas.c, a)
	if errors.Is(err, errDisagrees) {
		o.chosen.refused++
	}
	return nil
}

// byLibrary computes a product by cuBLASLt; its scratch memory is there.
func (o *Ops) byLibrary(op string, r *route, y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	p, pl := &r.p, &r.plan
	c := call{
		x: uint64(address(op, x)), w: w.Base.Buf.Dev, y: uint64(address(op, y)), alpha: 1,
		workspace: o.mem.take(o.dev.blas.space),
	}
	if pl.bias {
		c.bias = o.mem.take(2 * p.N)
		o.convert(c.bias, uint64(address(op, w.Bias)), p.N, engine.BF16, engine.F32)
	}
	strides := [3]int{p.X[0], p.Y[0], p.Residual[0]} // of items: x, y, c
	if pl.aside {
		c.y = o.mem.take(2 * p.Batch * p.Rows * rowStride(p.N))
		strides[1] = p.Rows * rowStride(p.N)
	}
	if pl.added {
		c.c, c.beta = uint64(address(op, e.Residual)), 1
	} else {
		c.c, strides[2] = c.y, strides[1]
	}
	if r.low != nil {
		f := o.adapters(leftOf(x), w, engine.BF16)
		low := call{x: uint64(f.x), w: uint64(f.w), y: c.y, c: c.y, alpha: 1, workspace: c.workspace}
		o.items(r.low, low, pl.items, [3]int{int(f.bs), strides[1], strides[1]})
		c.beta = 1
	}
	o.items(r.a, c, pl.items, strides)
	if pl.aside {
		o.apart(op, c.y, y, w, e, p)
	}
	o.chosen.library++
}

// items enqueues a product for each of so many items, whose x, y and c start strides elements apart.
func (o *Ops) items(a *C.pb_lt_plan, c call, items int, strides [3]int) {
	for range items {
		o.matmul(a, &c)
		c.x, c.y, c.c = c.x+uint64(2*strides[0]), c.y+uint64(2*strides[1]), c.c+uint64(2*strides[2])
	}
}

// apart computes y = residual + gate * (product + bias) of a product in scratch memory. The bias of one with an
// activation is in it.
func (o *Ops) apart(op string, product uint64, y engine.Tensor, w *engine.Weight, e engine.Epilogue,
	p *engine.Product,
) {
	var bias engine.Tensor
	if p.Bias && p.Act == engine.ActNone {
		bias = w.Bias
	}
	a := &o.args.pointwise
	*a = C.struct_pb_pointwise{r: rowsOf(op, y), op: C.PB_GATED, bias: address(op, bias)}
	a.r.vec = pieces(y, e.Residual, e.Gate, bias)
	a.a, a.gate = viewOf(op, &a.r, e.Residual), modulationOf(op, e.Gate, p.Batch)
	a.b = C.struct_pb_view{at: C.pb_u64(product), div: 1}
	outer := y.Dims() - 1
	a.b.stride[slot(outer-1, outer)] = C.pb_i64(rowStride(p.N))
	if outer == 2 {
		a.b.stride[0] = C.pb_i64(p.Rows * rowStride(p.N))
	} else {
		a.gate.stride[0] = 0 // one item, whose rows stand where others have items
	}
	o.pointwise(op, y)
}

// convert converts n neighbouring elements.
func (o *Ops) convert(dst, src uint64, n int, to, from engine.DType) {
	o.args.pack = C.struct_pb_pack{
		dst: C.pb_u64(dst), src: C.pb_u64(src), rows: 1, k: C.pb_i64(n), width: C.pb_i64(n), dst_ld: C.pb_i64(n),
		src_ld: C.pb_i64(n), from: C.int(from), to: C.int(to), scale: 1,
	}
	o.flat(kPack, n, unsafe.Pointer(&o.args.pack))
}

// call is one product by the library: addresses, and the factors of product and c.
type call struct {
	x, w, c, y, bias, workspace uint64
	alpha, beta                 float32
}

// matmul enqueues a product.
func (o *Ops) matmul(a *C.pb_lt_plan, c *call) {
	o.Issue(func(stream uint64, e unsafe.Pointer) {
		C.pb_lt_matmul(o.dev.blas.c, C.uint64_t(stream), a, C.float(c.alpha), C.uint64_t(c.x), C.uint64_t(c.w),
			C.float(c.beta), C.uint64_t(c.c), C.uint64_t(c.y), C.uint64_t(c.bias), C.uint64_t(c.workspace),
			C.uint64_t(o.dev.blas.space), (*C.pb_error)(e))
	})
}

// agrees computes a product of the shape, with every operand that it has, by the library and by our kernel and compares
// them on the device. The factors are any numbers; sums are scaled to about 1. It waits for the stream.
func (o *Ops) agrees(s C.pb_lt_shape, a *C.pb_lt_plan) (err error) {
	m, n, k, ldc, ldy := int(s.m), int(s.n), int(s.k), int(s.ldc), int(s.ldy)
	factor := 2 * max(m*int(s.ldx), n*int(s.ldw), m*ldc, n)
	part, done, err := o.borrow(factor, 2*m*ldy, 2*m*ldy, 4*n, o.dev.blas.space, m*n, 4*m)
	if err != nil {
		return err
	}
	defer done()
	random, ours, theirs, ones := part[0], part[1], part[2], part[3]
	o.noise(random, factor/2)
	c := call{
		x: random, w: random, c: theirs, y: theirs, workspace: part[4], alpha: 3 / float32(math.Sqrt(float64(k))),
	}
	l := left{at: C.pb_u64(random), ls: C.pb_i64(s.ldx), batch: 1, rows: m, dtype: engine.BF16, vec: 1}
	own := C.struct_pb_linear{
		y: C.pb_u64(ours), yls: C.pb_i64(ldy), gate_per: 1, y_type: C.int(engine.BF16), alpha: C.float(c.alpha),
		res: C.pb_u64(random), rls: C.pb_i64(ldc),
	}
	c.c, c.beta = random, 1
	if s.epilogue&C.PB_LT_BIAS != 0 {
		c.bias, own.bias = random, C.pb_u64(ones)
		o.convert(ones, random, n, engine.F32, engine.BF16)
	}
	o.multiply(&own, l, right{at: C.pb_u64(random), ld: int(s.ldw), n: n, k: k, dtype: engine.BF16})
	o.matmul(a, &c)
	rows := func(at uint64) engine.Tensor {
		return engine.NewTensor(engine.Buf{Dev: at}, engine.BF16, 1, m, ldy).Slice(2, 0, n)
	}
	if act := actOf(s.epilogue); act != engine.ActNone { // the library's is behind the sum with c
		o.Activate(rows(ours), rows(ours), act)
	}
	diff, whole := o.difference(rows(ours), rows(theirs), ones, part[5], part[6])
	const bound = 1.0 / 64 // each rounds to bf16, an activation may be an approximation
	if o.Err() == nil && !(diff <= bound*whole) {
		return fmt.Errorf("%w: m %d, n %d, k %d: by %.3g of %.3g", errDisagrees, m, n, k, diff, whole)
	}
	return o.Err()
}

// epilogueOf is the epilogue of an activation without a bias, 0: there is none.
func epilogueOf(act engine.Act) C.int {
	switch act {
	case engine.ActNone:
		return C.PB_LT_DEFAULT
	case engine.GELUTanh:
		return C.PB_LT_GELU
	case engine.ReLU:
		return C.PB_LT_RELU
	}
	return 0
}

// actOf is the activation of an epilogue.
func actOf(epilogue C.int) engine.Act {
	switch epilogue {
	case C.PB_LT_GELU, C.PB_LT_GELU_BIAS:
		return engine.GELUTanh
	case C.PB_LT_RELU, C.PB_LT_RELU_BIAS:
		return engine.ReLU
	}
	return engine.ActNone
}
