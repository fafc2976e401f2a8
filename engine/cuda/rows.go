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

// rowsOf describes the rows of y with its outermost dimension first and the others last, so that modulation rows can
// count items (see modulationOf).
func rowsOf(op string, y engine.Tensor) C.struct_pb_rows {
	r := C.struct_pb_rows{dims: [4]C.int{1, 1, 1, 1}, cols: C.int(y.Dim(-1))}
	rows := 1
	outer := y.Dims() - 1
	for i := range outer {
		r.dims[slot(i, outer)] = C.int(y.Dim(i))
		rows *= y.Dim(i)
	}
	if rows > math.MaxInt32 || y.Dim(-1) > math.MaxInt32 {
		panic(&engine.ShapeError{Op: op, Rule: "at most 2^31 rows and columns", Shapes: y.String()})
	}
	r.rows = C.int(rows)
	return r
}

// slot returns the place in pb_rows.dims of dimension i of outer leading ones.
func slot(i, outer int) int {
	if i == 0 {
		return 0
	}
	return 4 - outer + i
}

// viewOf describes one operand of the same rows; its dimensions of size 1 are broadcast where r has more.
func viewOf(op string, r *C.struct_pb_rows, t engine.Tensor) C.struct_pb_view {
	v := C.struct_pb_view{at: address(op, t), div: 1}
	if t.IsZero() {
		return v
	}
	outer := t.Dims() - 1
	for i := range outer {
		if s := slot(i, outer); t.Dim(i) > 1 || r.dims[s] == 1 {
			v.stride[s] = C.pb_i64(t.Stride(i))
		}
	}
	return v
}

// modulationOf describes modulation rows [G, E] of batch items.
func modulationOf(op string, t engine.Tensor, batch int) C.struct_pb_view {
	v := C.struct_pb_view{at: address(op, t), div: 1}
	if !t.IsZero() {
		v.stride[0] = C.pb_i64(t.Stride(0))
		v.div = C.pb_i64(max(1, batch/t.Dim(0)))
	}
	return v
}

// vectorOf describes a vector that is the same for all rows.
func vectorOf(op string, t engine.Tensor) C.struct_pb_view {
	return C.struct_pb_view{at: address(op, t), div: 1}
}

// pieces returns 1 if every operand present can be accessed in 16-byte pieces along its last dimension, as its address
// and strides allow, else 0.
func pieces(ts ...engine.Tensor) C.int {
	for i := range ts {
		if !inPieces(&ts[i]) {
			return 0
		}
	}
	return 1
}

func inPieces(t *engine.Tensor) bool {
	if t.IsZero() {
		return true
	}
	size := t.DType.Size()
	if t.Dim(-1)%8 != 0 || (t.Buf.Dev+uint64(t.Off*size))%16 != 0 {
		return false
	}
	for i := range t.Dims() - 1 {
		if t.Dim(i) > 1 && t.Stride(i)*size%16 != 0 {
			return false
		}
	}
	return true
}

// inBlocks prepares r and the views of its operands for a kernel of rows in pieces, if it is one for them: a block a
// row, in a grid of dims[3] by dims[0].
func inBlocks(r *C.struct_pb_rows, views ...*C.struct_pb_view) bool {
	if r.vec == 0 || r.dims[1] != 1 || r.dims[2] != 1 {
		return false
	}
	divided := false
	for _, v := range views {
		divided = divided || v.div > 1
		if C.pb_i64(r.dims[0])*v.stride[0]+C.pb_i64(r.dims[3])*v.stride[3] > math.MaxInt32 {
			return false
		}
	}
	if r.dims[3] == 1 && !divided { // rows without an outer dimension
		r.dims[0], r.dims[3] = 1, r.dims[0]
		for _, v := range views {
			v.stride[0], v.stride[3] = 0, v.stride[0]
		}
	}
	return r.dims[0] <= math.MaxUint16
}

// into starts to fill o.args.pointwise for the output y; inputs are all operands that the call reads.
func (o *Ops) into(op string, code C.int, y engine.Tensor, inputs ...engine.Tensor) *C.struct_pb_pointwise {
	a := &o.args.pointwise
	*a = C.struct_pb_pointwise{r: rowsOf(op, y), op: code}
	a.y, a.r.vec = viewOf(op, &a.r, y), pieces(y)&pieces(inputs...)
	return a
}

// pointwise launches o.args.pointwise.
func (o *Ops) pointwise(d engine.DType) {
	a := &o.args.pointwise
	known := a.op != C.PB_ACT && a.op != C.PB_ACT_MUL || a.act == C.PB_SILU || a.act == C.PB_GELU_TANH
	if known && a.r.rows > 0 && a.r.cols > 0 && inBlocks(&a.r, &a.y, &a.a, &a.b, &a.gate) {
		o.Flush()
		sum := held{
			k: typed(kPointwiseRows, d), x: int(a.r.dims[3]), y: int(a.r.dims[0]),
			threads: min(threads/2, (int(a.r.cols)+255)/256*32), args: unsafe.Pointer(a),
		}
		if a.op == C.PB_GATED {
			o.args.heldSum, sum.args = *a, unsafe.Pointer(&o.args.heldSum)
			o.held = sum
			return
		}
		o.launchNow(&sum)
		return
	}
	o.flat(typed(kPointwise, d), int(a.r.rows)*((int(a.r.cols)+7)/8), unsafe.Pointer(a))
}

// held is a launch that may join the next one. Gated sums wait for a norm of the sum, such norms for one of other rows,
// and heads for those of the next tokens.
type held struct {
	k                    kernel // 0: no launch is held back
	x, y, threads, bytes int    // grid, size of a block, its shared memory
	args                 unsafe.Pointer
}

func (o *Ops) launchNow(l *held) { o.launch(l.k, l.x, l.y, 1, l.threads, l.bytes, l.args) }

// launchHeld enqueues the launch that is held back, if there is one.
func (o *Ops) launchHeld() {
	if l := o.held; l.k != 0 {
		o.held = held{}
		o.launchNow(&l)
	}
}

func (o *Ops) Fill(dst engine.Tensor, v float32) {
	engine.CheckFill(dst)
	o.into("Fill", C.PB_FILL, dst).value = C.float(v)
	o.pointwise(dst.DType)
}

func (o *Ops) Add(y, x, b engine.Tensor) {
	engine.CheckAdd(y, x, b)
	a := o.into("Add", C.PB_ADD, y, x, b)
	a.a, a.b = viewOf("Add", &a.r, x), viewOf("Add", &a.r, b)
	o.pointwise(y.DType)
}

func (o *Ops) GatedAdd(y, x, gate, r, bias engine.Tensor) {
	engine.CheckGatedAdd(y, x, gate, r, bias)
	a := o.into("GatedAdd", C.PB_GATED, y, x, gate, r, bias)
	a.a, a.b, a.gate = viewOf("GatedAdd", &a.r, x), viewOf("GatedAdd", &a.r, r), modulationOf("GatedAdd", gate, y.Dim(0))
	a.bias = address("GatedAdd", bias)
	o.pointwise(y.DType)
}

func (o *Ops) Activate(y, x engine.Tensor, act engine.Act) {
	engine.CheckActivate(y, x, act)
	a := o.into("Activate", C.PB_ACT, y, x)
	a.act, a.a = C.int(act), viewOf("Activate", &a.r, x)
	o.pointwise(y.DType)
}

func (o *Ops) ActivateMul(y, x, b engine.Tensor, act engine.Act) {
	engine.CheckActivateMul(y, x, b, act)
	a := o.into("ActivateMul", C.PB_ACT_MUL, y, x, b)
	a.act, a.a, a.b = C.int(act), viewOf("ActivateMul", &a.r, x), viewOf("ActivateMul", &a.r, b)
	o.pointwise(y.DType)
}

// normScratch is the shared memory of a norm in bytes: a number per warp.
const normScratch = 128

// norm launches o.args.norm, whose operands are set: one block per row, with a thread for every 48 elements, at most
// 512.
func (o *Ops) norm(y engine.Tensor) {
	a, d := &o.args.norm, y.DType
	const most, each = 512, 48 // HELD pieces of 8 elements
	a.inverse = 1 / C.float(a.r.cols)
	size := min(most, (int(a.r.cols)+32*each-1)/(32*each)*32)
	if int(a.r.cols) > most*each || !inBlocks(&a.r, &a.y, &a.x, &a.w, &a.b) {
		o.launch(typed(kNorm, d), int(a.r.rows), 1, 1, size, normScratch, unsafe.Pointer(a))
		return
	}
	l := held{
		k: typed(kNormRows, d), x: int(a.r.dims[3]), y: int(a.r.dims[0]), threads: size, bytes: normScratch,
		args: unsafe.Pointer(a),
	}
	switch {
	case o.joins(d):
		s := &o.args.heldSum
		o.args.added = C.struct_pb_norm_added{
			norm: *a, sum: C.struct_pb_added{y: s.y, a: s.a, b: s.b, gate: s.gate, bias: s.bias},
		}
		l.k, l.args = typed(kNormAdded, d), unsafe.Pointer(&o.args.added)
		o.held = l
		return
	case o.pairs(&l, d):
		p := &o.args.pair
		*p = C.struct_pb_norm_pair{first: o.args.added, second: *a, rows: C.int(o.held.x)}
		l.k, l.x, l.args = typed(kNormPair, d), l.x+o.held.x, unsafe.Pointer(p)
		o.held = held{}
	}
	o.launchNow(&l)
}

// joins reports whether the norm that o.args.norm describes is of the gated sum that is held back, so that one launch
// can compute both: it reads the rows that the sum writes, and neither of them writes what another block reads.
func (o *Ops) joins(d engine.DType) bool {
	n, s := &o.args.norm, &o.args.heldSum
	if o.held.k != typed(kPointwiseRows, d) || n.x != s.y || n.r != s.r {
		return false
	}
	size := d.Size()
	sum, out := spanOf(&s.r, &s.y, size), spanOf(&s.r, &n.y, size)
	a, b, gate := spanOf(&s.r, &s.a, size), spanOf(&s.r, &s.b, size), spanOf(&s.r, &s.gate, 4)
	bias := vectorSpan(s.bias, s.r.cols)
	w, shift := spanOf(&n.r, &n.w, 4), spanOf(&n.r, &n.b, 4)
	return !out.meets(sum, a, b, gate, bias) && !sum.meets(gate, bias, w, shift) &&
		(s.a == s.y || !sum.meets(a)) && (s.b == s.y || !sum.meets(b))
}

// pairs reports whether l, the norm that o.args.norm describes, can be computed in the launch of the sum and its norm
// that are held back: with blocks of the same size, and neither writes what the other one reads or writes.
func (o *Ops) pairs(l *held, d engine.DType) bool {
	n, f := &o.args.norm, &o.args.added
	if o.held.k != typed(kNormAdded, d) || o.held.y != l.y || o.held.threads != l.threads {
		return false
	}
	size, r := d.Size(), &f.norm.r
	out, x := spanOf(&n.r, &n.y, size), spanOf(&n.r, &n.x, size)
	w, shift := spanOf(&n.r, &n.w, 4), spanOf(&n.r, &n.b, 4)
	sum, normed := spanOf(r, &f.sum.y, size), spanOf(r, &f.norm.y, size)
	return !out.meets(sum, normed, spanOf(r, &f.sum.a, size), spanOf(r, &f.sum.b, size), spanOf(r, &f.sum.gate, 4),
		vectorSpan(f.sum.bias, r.cols), spanOf(r, &f.norm.w, 4), spanOf(r, &f.norm.b, 4)) &&
		!sum.meets(x, w, shift) && !normed.meets(x, w, shift)
}

// span is what an operand has of each item: the addresses [lo, hi) of the first one, and the others step bytes apart,
// up to end. step is 0 if there is one item.
type span struct{ lo, hi, end, step C.pb_u64 }

// spanOf returns the addresses of an operand of rows in pieces, of elements of size bytes.
func spanOf(r *C.struct_pb_rows, v *C.struct_pb_view, size int) span {
	if v.at == 0 {
		return span{}
	}
	one := C.pb_i64(r.dims[3]-1)*v.stride[3] + C.pb_i64(r.cols)
	return itemsSpan(v.at, one, v.stride[0], int(r.dims[0]-1)/int(v.div)+1, size)
}

// vectorSpan returns the addresses of a vector in f32.
func vectorSpan(at C.pb_u64, n C.int) span { return itemsSpan(at, C.pb_i64(n), 0, 1, 4) }

// itemsSpan returns the addresses of items that are stride elements of size bytes apart and extend over n of them.
func itemsSpan(at C.pb_u64, n, stride C.pb_i64, items, size int) span {
	if at == 0 {
		return span{}
	}
	s := span{lo: at, hi: at + C.pb_u64(n)*C.pb_u64(size)}
	if items > 1 {
		s.step = C.pb_u64(stride) * C.pb_u64(size)
	}
	s.end = s.hi + C.pb_u64(items-1)*s.step
	return s
}

// meets reports whether s has an address of one of the others. Items of equal steps may lie between each other, all
// other interleaved views meet.
func (s span) meets(others ...span) bool {
	for _, t := range others {
		apart := s.end <= t.lo || t.end <= s.lo
		if s.step == t.step && s.step > 0 {
			from := (t.lo - s.lo) % s.step // of t behind s, both in the first item
			if t.lo < s.lo {
				from = (s.step - (s.lo-t.lo)%s.step) % s.step
			}
			apart = apart || from >= s.hi-s.lo && from+(t.hi-t.lo) <= s.step
		}
		if !apart {
			return true
		}
	}
	return false
}

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
		split: C.int(k.Dim(1)),
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
	inRows := a.vec != 0 && k.Dim(0) <= math.MaxUint16 && near(dq, dk, dv, q, k, v) &&
		pieces(n.QScale, n.QBias, n.KScale, n.KBias)&wholeTables(r) != 0
	if inRows && (a.lanes == 8 || a.lanes == 16) {
		kernel = kHeadsRows8
		if a.lanes == 16 {
			kernel = kHeadsRows16
		}
		o.holdHeads(&held{
			k: typed(kernel, k.DType), x: k.Dim(1), y: k.Dim(0), threads: warpsOf(k.Dim(2), 32/int(a.lanes)) * 32,
		}, k.DType.Size())
		return
	}
	heads := int(a.parts) * k.Dim(0) * k.Dim(1) * k.Dim(2)
	o.flat(typed(kernel, k.DType), heads*int(a.lanes), unsafe.Pointer(a))
}

// holdHeads holds back l, a launch of o.args.heads with activations of size bytes, or makes one launch of it and the
// heads of the tokens before, which are held back.
func (o *Ops) holdHeads(l *held, size int) {
	n, f := &o.args.heads, &o.args.heldHeads
	if !o.follows(l, size) {
		o.Flush()
		*f, l.args = *n, unsafe.Pointer(f)
		o.held = *l
		return
	}
	f.l += n.l
	for i := range n.parts {
		f.part[i].w2, f.part[i].b2 = n.part[i].w, n.part[i].b
	}
	o.held.x = int(f.l)
	o.launchHeld()
}

// follows reports whether the tokens of l, which o.args.heads describes, are those behind the ones of the heads that
// are held back, so that one launch can compute both: all but the weights is alike, and neither writes what the other
// one reads or writes.
func (o *Ops) follows(l *held, size int) bool {
	n, f := &o.args.heads, &o.args.heldHeads
	behind := C.pb_u64(f.l) * 4
	if o.held.k != l.k || o.held.y != l.y || o.held.threads != l.threads || n.parts != f.parts || n.h != f.h ||
		n.d != f.d || n.eps != f.eps || n.cos_s != f.cos_s || n.sin_s != f.sin_s ||
		n.cos != f.cos+behind*C.pb_u64(f.cos_s) || n.sin != f.sin+behind*C.pb_u64(f.sin_s) {
		return false
	}
	behind = C.pb_u64(f.l) * C.pb_u64(size)
	for i := range n.parts {
		p, q := &f.part[i], &n.part[i]
		if p.kind != q.kind || p.rope != q.rope || p.ss != q.ss || p.ds != q.ds ||
			q.src != p.src+behind*C.pb_u64(p.ss[1]) || q.dst != p.dst+behind*C.pb_u64(p.ds[1]) {
			return false
		}
		for _, s := range [...]*[3]C.pb_i64{&p.ss, &p.ds} {
			if C.pb_i64(n.batch)*s[0]+C.pb_i64(f.l+n.l)*s[1]+C.pb_i64(n.h)*s[2] > math.MaxInt32 {
				return false
			}
		}
	}
	for i := range n.parts {
		for j := range n.parts {
			if !independent(f, n, &f.part[i], &n.part[j], size) || !independent(n, f, &n.part[i], &f.part[j], size) {
				return false
			}
		}
	}
	return true
}

// independent reports whether part p of a writes nothing that part q of b reads or writes.
func independent(a, b *C.struct_pb_heads, p, q *C.struct_pb_part, size int) bool {
	of := func(c *C.struct_pb_heads, at C.pb_u64, s *[3]C.pb_i64) span {
		one := C.pb_i64(c.l-1)*s[1] + C.pb_i64(c.h-1)*s[2] + C.pb_i64(c.d)
		return itemsSpan(at, one, s[0], int(c.batch), size)
	}
	table := func(at C.pb_u64, s C.pb_i64) span {
		return itemsSpan(at, C.pb_i64(b.l-1)*s+C.pb_i64(b.d)/2, 0, 1, 4)
	}
	return !of(a, p.dst, &p.ds).meets(of(b, q.dst, &q.ds), of(b, q.src, &q.ss), vectorSpan(q.w, b.d),
		vectorSpan(q.b, b.d), table(b.cos, b.cos_s), table(b.sin, b.sin_s))
}

// near reports whether offsets within each of the tensors are below 2^31 elements.
func near(ts ...engine.Tensor) bool {
	for i := range ts {
		last := 0
		for d := range ts[i].Dims() {
			last += ts[i].Dim(d) * ts[i].Stride(d)
		}
		if last > math.MaxInt32 {
			return false
		}
	}
	return true
}

// wholeTables returns 1 if the rotations of 8 elements are 16-byte pieces of both tables, or there are none.
func wholeTables(r engine.RoPE) C.int {
	for _, t := range []*engine.Tensor{&r.Cos, &r.Sin} {
		if !t.IsZero() && !inSteps(t, 4) {
			return 0
		}
	}
	return 1
}

// warpsOf returns the warps of a block that computes heads, each of them per at a time: those that leave the fewest
// places empty.
func warpsOf(heads, per int) int {
	best, least := 0, math.MaxInt
	for _, warps := range [...]int{4, 5, 6, 7, 8, 3, 2, 1} {
		if rounds := (heads + warps*per - 1) / (warps * per); rounds*warps < least {
			best, least = warps, rounds*warps
		}
	}
	return best
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
