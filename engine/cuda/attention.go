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
	"patchbay/engine/cuda/driver"
)

// Attention implements engine.Ops. bf16 heads of at most 128 elements, in rows of 16-byte pieces, are computed by cuDNN
// where it has a plan that agrees with our kernel, else on the tensor cores (attend.cu). Larger bf16 heads without
// causal mask and bias are computed as two products, everything else in f32 (attend_any.cu). Heads have at most 512
// elements.
func (o *Ops) Attention(out, q, k, v engine.Tensor, a engine.AttentionArgs) {
	const op = "Attention"
	engine.CheckAttention(out, q, k, v, a)
	if q.Dim(0)*q.Dim(1)*q.Dim(2) == 0 {
		return
	}
	if q.Dim(3) > 512 {
		panic(&engine.ShapeError{Op: op, Rule: "heads of at most 512 elements", Shapes: q.String()})
	}
	scale := a.Scale
	if scale == 0 {
		scale = float32(1 / math.Sqrt(float64(q.Dim(3))))
	}
	if asProducts(out, q, k, v, a) {
		o.attendByProducts(out, q, k, v, a, scale)
		return
	}
	shape := engine.AttentionOf(out, q, k, v, a)
	at := [5]uint64{
		driver.Address(op, q), driver.Address(op, k), driver.Address(op, v), driver.Address(op, out),
		driver.Address(op, a.LSE),
	}
	if pieces(out, q, k, v) != 0 && o.byCUDNN(&shape, scale, at) {
		return
	}
	o.attendedKernels++
	kernel, queries := attendKernel(out, q, k, v, a)
	o.attend(kernel, queries, &shape, scale, at, a)
}

// attend computes attention of a shape by our kernel, whose blocks have the given number of queries each. at holds the
// addresses of q, k, v, o and the log-sum-exp; mask and bias are those of a.
func (o *Ops) attend(kernel kernel, queries int, s *engine.AttentionShape, scale float32, at [5]uint64,
	a engine.AttentionArgs,
) {
	long := func(t [3]int) [3]C.pb_i64 { return [3]C.pb_i64{C.pb_i64(t[0]), C.pb_i64(t[1]), C.pb_i64(t[2])} }
	p := &o.args.attend
	*p = C.struct_pb_attend{
		bias: address("Attention", a.Bias), qs: long(s.Q), ks: long(s.K), vs: long(s.V), os: long(s.O),
		lq: C.int(s.Lq), lk: C.int(s.Lk), h: C.int(s.H), d: C.int(s.D), scale: C.float(scale),
		lse_s: [2]C.pb_i64{C.pb_i64(s.LSE[0]), C.pb_i64(s.LSE[1])},
	}
	if a.Causal {
		p.causal = 1
	}
	if !a.Bias.IsZero() {
		p.bias_s = [2]C.pb_i64{C.pb_i64(a.Bias.Stride(0)), C.pb_i64(a.Bias.Stride(1))}
	}
	// The lengths are launch arguments, so a launch has at most PB_MAX_ITEMS items.
	for from := 0; from < s.B; from += C.PB_MAX_ITEMS {
		n, size := min(C.PB_MAX_ITEMS, s.B-from), s.DType.Size()
		item := func(i, size, stride int) C.pb_u64 { return C.pb_u64(at[i] + uint64(size*from*stride)) }
		p.q, p.k, p.v, p.o = item(0, size, s.Q[0]), item(1, size, s.K[0]), item(2, size, s.V[0]), item(3, size, s.O[0])
		if s.Sums {
			p.lse = item(4, engine.F32.Size(), s.LSE[0])
		}
		if a.KeyLen != nil {
			p.lens = 1
			for i := range n {
				p.key_len[i] = C.int(a.KeyLen[from+i])
			}
		}
		o.launch(kernel, (s.Lq+queries-1)/queries, s.H, n, threads, kernels[kernel].shared, unsafe.Pointer(p))
	}
}

// attendMost is the largest head that one attention kernel of the tensor cores handles, in elements.
const attendMost = 128

// attendKernel chooses the kernel and returns it with its number of queries per block.
func attendKernel(out, q, k, v engine.Tensor, a engine.AttentionArgs) (kernel, int) {
	d := q.Dim(3)
	masked := a.Causal || a.KeyLen != nil || !a.Bias.IsZero() || a.Scale < 0
	switch {
	case d > attendMost:
		return typed(kAttendWide, q.DType), 16
	case q.DType != engine.BF16 || pieces(out, q, k, v) == 0:
		return typed(kAttendAny, q.DType), 32
	case masked && d <= 64:
		return kAttendMasked64, flashQueries
	case masked:
		return kAttendMasked128, flashQueries
	}
	return flashKernel(d), flashQueries
}

// flashQueries is the number of queries per block of attend.cu.
const flashQueries = 128

// flashKernel chooses the kernel of the tensor cores for heads of d elements without a mask.
func flashKernel(d int) kernel {
	switch {
	case d <= 32:
		return kAttend32
	case d <= 64:
		return kAttend64
	case d <= 80:
		return kAttend80
	case d <= 96:
		return kAttend96
	}
	return kAttend128
}

// asProducts reports whether attention is computed as two products. That is for the autoencoder, whose one head has 512
// elements and as many keys as the picture has latents.
func asProducts(out, q, k, v engine.Tensor, a engine.AttentionArgs) bool {
	return q.Dim(3) > attendMost && q.DType == engine.BF16 && !a.Causal && a.Bias.IsZero() && k.Dim(1) > 0 &&
		pieces(out, q, k, v) != 0
}

// scoreRows returns how many of lq queries have room for their scores with lk keys in o.strip bytes, at least one.
func (o *Ops) scoreRows(lq, lk int) int { return min(lq, max(1, o.strip/(4*rowStride(lk)))) }

// scoreRoom returns the scratch bytes of attendByProducts: scores, probabilities and transposed values.
func scoreRoom(rows, lk, d int) int {
	ld := rowStride(lk)
	return room(4*rows*ld) + room(2*rows*ld) + room(2*d*ld)
}

// attendByProducts computes scores q k^T in f32, their softmax in bf16 and its product with v, head by head and for as
// many queries at a time as scoreRows says.
func (o *Ops) attendByProducts(out, q, k, v engine.Tensor, a engine.AttentionArgs, scale float32) {
	lq, lk, d := q.Dim(1), k.Dim(1), q.Dim(3)
	ld := rowStride(lk)
	rows := o.scoreRows(lq, lk)
	if err := o.mem.need(scoreRoom(rows, lk, d)); err != nil {
		o.Note(err)
		return
	}
	scores, probabilities := o.mem.take(4*rows*ld), o.mem.take(2*rows*ld)
	turned := engine.NewTensor(engine.Buf{Dev: o.mem.take(2 * d * ld)}, engine.BF16, d, ld).Slice(1, 0, lk)
	for b := range q.Dim(0) {
		valid := lk
		if a.KeyLen != nil {
			valid = a.KeyLen[b]
		}
		for h := range q.Dim(2) {
			keys, values := k.Index(2, h).Index(0, b), v.Index(2, h).Index(0, b)
			o.strided(turned, values.Transpose(0, 1))
			for from := 0; from < lq; from += rows {
				n := min(rows, lq-from)
				queries, results := q.Index(2, h).Index(0, b).Slice(0, from, from+n),
					out.Index(2, h).Index(0, b).Slice(0, from, from+n)
				first := C.struct_pb_linear{
					y: C.pb_u64(scores), yls: C.pb_i64(ld), gate_per: 1,
					y_type: C.int(engine.F32), alpha: 1,
				}
				if lk%8 == 0 {
					first.vec = 1
				}
				o.multiply(&first, leftOf("Attention", queries), right{
					at: address("Attention", keys), ld: keys.Stride(0), n: lk, k: d,
					dtype: engine.BF16,
				})
				o.args.softmax = C.struct_pb_softmax{
					s: C.pb_u64(scores), p: C.pb_u64(probabilities), s_ld: C.pb_i64(ld), p_ld: C.pb_i64(ld),
					rows: C.int(n), cols: C.int(lk), valid: C.int(valid), scale: C.float(scale),
				}
				if !a.LSE.IsZero() {
					o.args.softmax.lse = address("Attention", a.LSE.Index(0, b).Index(0, h).Slice(0, from, from+n))
				}
				o.launch(kSoftmax, n, 1, 1, min(512, (lk+31)/32*32), normScratch, unsafe.Pointer(&o.args.softmax))
				second := C.struct_pb_linear{
					y: address("Attention", results), yls: C.pb_i64(results.Stride(0)), gate_per: 1,
					y_type: C.int(engine.BF16), alpha: 1, vec: 1,
				}
				p := left{at: C.pb_u64(probabilities), ls: C.pb_i64(ld), batch: 1, rows: n, dtype: engine.BF16, vec: 1}
				o.multiply(&second, p, right{at: address("Attention", turned), ld: ld, n: d, k: lk, dtype: engine.BF16})
			}
		}
	}
}

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
