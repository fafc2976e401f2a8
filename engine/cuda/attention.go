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

// Attention implements engine.Ops. bf16 heads of at most 128 elements in rows of 16-byte pieces go over the tensor cores (attend.cu), everything
// else through f32 (attend_any.cu), with heads of at most 512 elements.
func (o *Ops) Attention(out, q, k, v engine.Tensor, a engine.AttentionArgs) {
	const op = "Attention"
	engine.CheckAttention(out, q, k, v, a)
	if q.Dim(0)*q.Dim(1)*q.Dim(2) == 0 {
		return
	}
	if q.Dim(3) > 512 {
		panic(&engine.ShapeError{Op: op, Rule: "heads of at most 512 elements", Shapes: q.String()})
	}
	p := &o.args.attend
	*p = C.struct_pb_attend{
		lse: address(op, a.LSE), bias: address(op, a.Bias), lq: C.int(q.Dim(1)), lk: C.int(k.Dim(1)), h: C.int(q.Dim(2)), d: C.int(q.Dim(3)),
		scale: C.float(a.Scale),
	}
	if a.Scale == 0 {
		p.scale = C.float(1 / math.Sqrt(float64(q.Dim(3))))
	}
	if a.Causal {
		p.causal = 1
	}
	if !a.LSE.IsZero() {
		p.lse_s = [2]C.pb_i64{C.pb_i64(a.LSE.Stride(0)), C.pb_i64(a.LSE.Stride(1))}
	}
	if !a.Bias.IsZero() {
		p.bias_s = [2]C.pb_i64{C.pb_i64(a.Bias.Stride(0)), C.pb_i64(a.Bias.Stride(1))}
	}
	kernel, queries := attendKernel(out, q, k, v, a)
	// The lengths travel with the launch, so many items at most.
	for from := 0; from < q.Dim(0); from += C.PB_MAX_ITEMS {
		n := min(C.PB_MAX_ITEMS, q.Dim(0)-from)
		part := func(t engine.Tensor) (C.pb_u64, [3]C.pb_i64) {
			t = t.Slice(0, from, from+n)
			return address(op, t), [3]C.pb_i64{C.pb_i64(t.Stride(0)), C.pb_i64(t.Stride(1)), C.pb_i64(t.Stride(2))}
		}
		p.q, p.qs = part(q)
		p.k, p.ks = part(k)
		p.v, p.vs = part(v)
		p.o, p.os = part(out)
		if !a.LSE.IsZero() {
			p.lse = address(op, a.LSE.Slice(0, from, from+n))
		}
		if a.KeyLen != nil {
			p.lens = 1
			for i := range n {
				p.key_len[i] = C.int(a.KeyLen[from+i])
			}
		}
		o.launch(kernel, (q.Dim(1)+queries-1)/queries, q.Dim(2), n, threads, kernels[kernel].shared, unsafe.Pointer(p))
	}
}

// attendKernel chooses the kernel and says how many queries one of its blocks has.
func attendKernel(out, q, k, v engine.Tensor, a engine.AttentionArgs) (kernel, int) {
	d := q.Dim(3)
	masked := a.Causal || a.KeyLen != nil || !a.Bias.IsZero() || a.Scale < 0
	switch {
	case d > 128:
		return typed(kAttendWide, q.DType), 16
	case q.DType != engine.BF16 || pieces(out, q, k, v) == 0:
		return typed(kAttendAny, q.DType), 32
	case masked && d <= 64:
		return kAttendMasked64, 128
	case masked:
		return kAttendMasked128, 128
	case d <= 32:
		return kAttend32, 128
	case d <= 64:
		return kAttend64, 128
	case d <= 80:
		return kAttend80, 128
	case d <= 96:
		return kAttend96, 128
	}
	return kAttend128, 128
}

// MergeAttention implements engine.Ops.
func (o *Ops) MergeAttention(out, lse, o2, lse2 engine.Tensor) {
	const op = "MergeAttention"
	engine.CheckMergeAttention(out, lse, o2, lse2)
	if lse.Len() == 0 {
		return
	}
	p := &o.args.merge
	*p = C.struct_pb_merge{
		o: address(op, out), o2: address(op, o2), lse: address(op, lse), lse2: address(op, lse2),
		batch: C.int(out.Dim(0)), l: C.int(out.Dim(1)), h: C.int(out.Dim(2)), d: C.int(out.Dim(3)), vec: pieces(out, o2),
		lse_s:  [2]C.pb_i64{C.pb_i64(lse.Stride(0)), C.pb_i64(lse.Stride(1))},
		lse2_s: [2]C.pb_i64{C.pb_i64(lse2.Stride(0)), C.pb_i64(lse2.Stride(1))},
	}
	for i := range 3 {
		p.os[i], p.o2s[i] = C.pb_i64(out.Stride(i)), C.pb_i64(o2.Stride(i))
	}
	o.flat(typed(kMerge, out.DType), 32*lse.Len(), unsafe.Pointer(p))
}
