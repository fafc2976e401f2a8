package cpu

/*
#cgo noescape pb_run_attn
#cgo nocallback pb_run_attn
#cgo noescape pb_run_attn_pack
#cgo nocallback pb_run_attn_pack
#cgo noescape pb_run_qk
#cgo nocallback pb_run_qk
#include "cpu.h"
*/
import "C"

import (
	"fmt"
	"math"

	"patchbay/engine"
)

const (
	kvBytes   = 64 << 20 // packed keys and values of the heads that are worked on together
	queryRows = 112      // queries per task, about
	packKeys  = 512      // keys per packing task, a multiple of every panel width
	keyBlock  = 512      // KEY_BLOCK of attention.h
)

// Attention computes o = softmax(scale * q k^T + bias) v per head; see engine.Ops.
func (o *Ops) Attention(out, q, k, v engine.Tensor, a engine.AttentionArgs) {
	const op = "Attention"
	engine.CheckAttention(out, q, k, v, a)
	if q.Len() == 0 {
		return
	}
	defer o.done()
	batch, lq, heads, d := q.Dim(0), q.Dim(1), q.Dim(2), q.Dim(3)
	lk := k.Dim(1)
	g := C.pb_attn{
		q: o.addr(op, q), k: o.addr(op, k), v: o.addr(op, v), o: o.addr(op, out), lse: o.addr(op, a.LSE),
		bias:  o.addr(op, a.Bias),
		dtype: C.int64_t(q.DType), heads: C.int64_t(heads), lq: C.int64_t(lq), lk: C.int64_t(lk), d: C.int64_t(d),
		scale: C.float(a.Scale),
	}
	g.q_b, g.q_l, g.q_h = headStrides(q)
	g.k_b, g.k_l, g.k_h = headStrides(k)
	g.v_b, g.v_l, g.v_h = headStrides(v)
	g.o_b, g.o_l, g.o_h = headStrides(out)
	if !a.LSE.IsZero() {
		g.lse_b, g.lse_h = C.int64_t(a.LSE.Stride(0)), C.int64_t(a.LSE.Stride(1))
	}
	if !a.Bias.IsZero() {
		g.bias_h, g.bias_l = C.int64_t(a.Bias.Stride(0)), C.int64_t(a.Bias.Stride(1))
	}
	if a.Scale == 0 {
		g.scale = C.float(1 / math.Sqrt(float64(d)))
	}
	if a.Causal {
		g.causal = 1
	}
	threads := o.threadsFor(2 * float64(batch*heads*lq*lk) * float64(d))
	keyBytes, valueBytes := 4*roundUp(lk, o.nr)*d, 4*lk*roundUp(d, o.nr)
	if o.dot && q.DType == engine.BF16 { // pairs of channels and pairs of keys share a word
		keyBytes, valueBytes = 4*roundUp(lk, o.nr)*((d+1)/2), 4*((lk+1)/2)*roundUp(d, o.nr)
	}
	headBytes := keyBytes + valueBytes
	group := min(batch*heads, max(1, kvBytes/max(1, headBytes)))
	tiles := (lq + o.mr - 1) / o.mr
	perTask := max(1, min(queryRows/o.mr, tiles*group/(2*threads)))
	blocks := (tiles + perTask - 1) / perTask
	floats := keyBlock*o.mr + ((tiles+blocks-1)/blocks+1)*o.mr*(roundUp(d, o.vw)+roundUp(d, o.nr))
	kv := numOf(o.mem.kv.need(headBytes * group))
	for first := 0; first < batch*heads; first += group {
		n := min(group, batch*heads-first)
		head := func(i int) C.pb_attn {
			h := g
			h.b, h.h = C.int64_t((first+i)/heads), C.int64_t((first+i)%heads)
			h.keys = C.int64_t(lk)
			if a.KeyLen != nil {
				h.keys = C.int64_t(a.KeyLen[h.b])
			}
			h.kp = kv + C.uint64_t(i*headBytes)
			h.vp = h.kp + C.uint64_t(keyBytes)
			return h
		}
		pieces := (lk + packKeys - 1) / packKeys
		each(threads, n*pieces, func(_, t int) {
			h := head(t / pieces)
			h.l0, h.l1 = C.int64_t(t%pieces*packKeys), min(h.keys, C.int64_t((t%pieces+1)*packKeys))
			if h.l0 < h.l1 {
				C.pb_run_attn_pack(o.k, &h)
			}
		})
		each(threads, n*blocks, func(worker, t int) {
			h := head(t / blocks)
			h.l0, h.l1 = C.int64_t(lq*(t%blocks)/blocks), C.int64_t(lq*(t%blocks+1)/blocks)
			h.tmp = numOf(o.mem.worker[worker].a.need(4 * floats))
			C.pb_run_attn(o.k, &h)
		})
	}
}

// headStrides returns the batch, row and head strides of a [B, L, H, D] view.
func headStrides(t engine.Tensor) (b, l, h C.int64_t) {
	return C.int64_t(t.Stride(0)), C.int64_t(t.Stride(1)), C.int64_t(t.Stride(2))
}

// MergeAttention folds o2, lse2 into o, lse; see engine.Ops.
func (o *Ops) MergeAttention(out, lse, o2, lse2 engine.Tensor) {
	engine.CheckMergeAttention(out, lse, o2, lse2)
	e, s := o.into("MergeAttention", C.PB_MERGE, out, 1)
	across := func(t engine.Tensor) C.pb_view { // [B, H, L] as rows [B, L, H] of one value
		return s.view(t.Transpose(1, 2).Unsqueeze(3))
	}
	e.a, e.b, e.c = across(lse), s.view(o2), across(lse2)
	o.rowWise(e, s)
}

// maxHead is the largest head dimension that QKNormRoPE rotates (see qknorm.h).
const maxHead = 1024

// QKNormRoPE normalizes and rotates heads and stores them; see engine.Ops. D is at most 1024 with rotation.
func (o *Ops) QKNormRoPE(dq, dk, dv, q, k, v engine.Tensor, n engine.QKNorm, r engine.RoPE) {
	const op = "QKNormRoPE"
	engine.CheckQKNormRoPE(dq, dk, dv, q, k, v, n, r)
	if k.Len() == 0 {
		return
	}
	if k.Dim(3) > maxHead && !r.Cos.IsZero() {
		panic(&engine.ShapeError{Op: op, Rule: fmt.Sprintf("rotation needs D <= %d", maxHead), Shapes: k.String()})
	}
	defer o.done()
	a := C.pb_qk{
		dtype: C.int64_t(k.DType), d: C.int64_t(k.Dim(3)), norm: C.int32_t(n.Kind), eps: C.float(n.Eps),
		cos: o.addr(op, r.Cos), sin: o.addr(op, r.Sin),
		w: [2]C.uint64_t{o.addr(op, n.QScale), o.addr(op, n.KScale)},
		b: [2]C.uint64_t{o.addr(op, n.QBias), o.addr(op, n.KBias)},
	}
	if !r.Cos.IsZero() {
		a.cos_s, a.sin_s = C.int64_t(r.Cos.Stride(0)), C.int64_t(r.Sin.Stride(0))
	}
	a.rows.d = [4]C.int64_t{1, 1, C.int64_t(k.Dim(0)), C.int64_t(k.Dim(1))}
	a.rows.n = C.int64_t(k.Dim(2))
	for i, t := range [3]engine.Tensor{dq, dk, dv} {
		a.dst[i], a.dst_h[i] = o.headRows(op, t)
	}
	for i, t := range [3]engine.Tensor{q, k, v} {
		a.src[i], a.src_h[i] = o.headRows(op, t)
	}
	o.rowTasks(k.Dim(0)*k.Dim(1), 3*k.Dim(2)*k.Dim(3), func(r0, r1 int) {
		a := a
		a.rows.r0, a.rows.r1 = C.int64_t(r0), C.int64_t(r1)
		C.pb_run_qk(o.k, &a)
	})
}

// headRows returns the [B, L] rows of a [B, L, H, D] view and the stride of its heads.
func (o *Ops) headRows(op string, t engine.Tensor) (v C.pb_view, h C.int64_t) {
	if t.IsZero() {
		return v, 0
	}
	v.p = o.addr(op, t)
	v.s[2], v.s[3] = C.int64_t(t.Stride(0)), C.int64_t(t.Stride(1))
	return v, C.int64_t(t.Stride(2))
}
