package optest

import (
	"fmt"
	"math"

	"patchbay/engine"
)

// tables returns rotation tables [l, d/2] of angles that differ for every token and pair.
func (r *rig) tables(l, d int) engine.RoPE {
	angle := func(f func(float64) float64) func() float32 {
		i := 0
		return func() float32 { i++; return float32(f(float64(i) * 0.7)) }
	}
	return engine.RoPE{
		Cos: r.alloc("cos", engine.F32, angle(math.Cos), l, d/2),
		Sin: r.alloc("sin", engine.F32, angle(math.Sin), l, d/2),
	}
}

// qkNormCases covers the kinds of norm, with and without tables, absent operands, and results in place, in separate
// tensors and in exchange buffers.
func qkNormCases() []testCase {
	var cases []testCase
	sizes := [][4]int{
		{1, 1, 1, 2},
		{2, 3, 2, 8},
		{1, 5, 3, 64},
		{2, 4, 1, 128},
		{1, 0, 2, 8},
		{3, 2, 5, 40},
		{1, 7, 2, 72},
		{1, 3, 2, 5},
		{2, 2, 2, 1},
	}
	for d := 2; d <= 34; d += 2 {
		sizes = append(sizes, [4]int{1, 2, 3, d})
	}
	for i, s := range sizes {
		for j := range 6 {
			cases = append(cases, testCase{
				name: fmt.Sprintf("QKNormRoPE/%v variant %d", s, j), tol: normTol(),
				run: func(r *rig) {
					runQKNorm(r, s[0], s[1], s[2], s[3], engine.NormKind(j%3), (i+j)%3, j)
				},
			})
		}
	}
	return cases
}

func runQKNorm(r *rig, b, l, h, d int, kind engine.NormKind, place, variant int) {
	n := engine.QKNorm{Kind: kind, Eps: 1e-6}
	if kind != engine.NoNorm && variant != 5 {
		n.QScale, n.KScale = r.f32("q scale", d), r.f32("k scale", d)
	}
	if kind == engine.LayerNorm && variant != 5 {
		n.QBias, n.KBias = r.f32("q bias", d), r.f32("k bias", d)
	}
	var rope engine.RoPE
	if variant < 4 && d%2 == 0 {
		rope = r.tables(l, d)
	}
	packed := r.in("qkv", b, l, 3, h, d)
	q, k, v := packed.Index(2, 0), packed.Index(2, 1), packed.Index(2, 2)
	dq, dk, dv := q, k, v
	switch place {
	case 1: // separate outputs; v is left out
		dq, dk, dv, v = r.out("dq", b, l, h, d), r.out("dk", b, l, h, d), engine.Tensor{}, engine.Tensor{}
	case 2: // slots of an exchange buffer [B, H, L, D] -> [B, L, H, D]; keys and values only
		slots := r.alloc("exchange", r.dtype, nan, 2, b, h, l, d)
		dq, q = engine.Tensor{}, engine.Tensor{}
		dk, dv = slots.Index(0, 0).Transpose(1, 2), slots.Index(0, 1).Transpose(1, 2)
	}
	for _, t := range []engine.Tensor{dq, dk, dv} {
		if !t.IsZero() {
			r.writes(t)
		}
	}
	r.ops.QKNormRoPE(dq, dk, dv, q, k, v, n, rope)
}

// attentionSize is one shape with its options.
type attentionSize struct {
	b, h, lq, lk, d int
	causal, bias    bool
	scale           float32
	lens            []int
}

func attentionSizes() []attentionSize {
	list := []attentionSize{
		{b: 1, h: 1, lq: 1, lk: 1, d: 8},
		{b: 2, h: 3, lq: 17, lk: 17, d: 16, causal: true},
		{b: 1, h: 2, lq: 33, lk: 65, d: 40},
		{b: 1, h: 3, lq: 13, lk: 0, d: 8},
		{b: 1, h: 1, lq: 0, lk: 5, d: 8},
		{b: 0, h: 2, lq: 3, lk: 5, d: 8},
		{b: 2, h: 1, lq: 64, lk: 128, d: 72, scale: 1},
		{b: 1, h: 2, lq: 67, lk: 131, d: 128},
		{b: 3, h: 2, lq: 9, lk: 11, d: 5, lens: []int{11, 0, 4}},
		{b: 2, h: 2, lq: 19, lk: 19, d: 64, bias: true, scale: 1},
		{b: 2, h: 3, lq: 33, lk: 33, d: 24, causal: true, bias: true, lens: []int{33, 7}},
		{b: 2, h: 2, lq: 5, lk: 70, d: 32, lens: []int{1, 69}, scale: 30}, // scores far outside the range of exp
		{b: 1, h: 1, lq: 130, lk: 300, d: 64},
		{b: 1, h: 1, lq: 70, lk: 70, d: 256, causal: true},
	}
	for d := 1; d <= 17; d++ {
		list = append(list, attentionSize{b: 1, h: 2, lq: d, lk: 18 - d, d: d},
			attentionSize{b: 1, h: 1, lq: 16 + d, lk: 33 - d, d: 8})
	}
	return list
}

func (s attentionSize) String() string {
	return fmt.Sprintf("B%d H%d Lq%d Lk%d D%d causal %v bias %v scale %g lens %v", s.b, s.h, s.lq, s.lk, s.d, s.causal,
		s.bias, s.scale, s.lens)
}

func attentionCases() []testCase {
	var cases []testCase
	for i, s := range attentionSizes() {
		tol := attendTol()
		tol.rel *= float64(max(1, s.scale)) // scores of magnitude s have an absolute error of s times the f32 rounding
		cases = append(cases, testCase{name: "Attention/" + s.String(), tol: tol, run: func(r *rig) {
			a := engine.AttentionArgs{Scale: s.scale, Causal: s.causal, KeyLen: append([]int(nil), s.lens...)}
			if s.lens == nil {
				a.KeyLen = nil
			}
			if s.bias {
				a.Bias = r.f32("bias", s.h, s.lq, s.lk)
			}
			if i%2 == 0 {
				a.LSE = r.writes(r.alloc("lse", engine.F32, nan, s.b, s.h, s.lq))
			}
			q, kv := r.in("q", s.b, s.lq, s.h, s.d), r.in("kv", s.b, s.lk, 2, s.h, s.d)
			r.ops.Attention(r.out("o", s.b, s.lq, s.h, s.d), q, kv.Index(2, 0), kv.Index(2, 1), a)
			clear(a.KeyLen) // Attention must have read it by now
		}})
	}
	cases = append(cases, testCase{
		name: "Attention/keys shared by the batch, packed self attention", tol: attendTol(),
		run: func(r *rig) {
			packed := r.in("qkv", 2, 21, 3, 2, 16)
			r.ops.Attention(r.out("o", 2, 21, 2, 16), packed.Index(2, 0), packed.Index(2, 1), packed.Index(2, 2),
				engine.AttentionArgs{})
			k := r.in("k", 1, 9, 2, 16).Broadcast(0, 2)
			v := r.in("v", 1, 9, 2, 16).Broadcast(0, 2)
			heads := r.alloc("by heads", r.dtype, nan, 2, 2, 21, 16) // [B, H, L, D] -> [B, L, H, D]
			r.ops.Attention(r.writes(heads.Transpose(1, 2)), packed.Index(2, 0), k, v, engine.AttentionArgs{})
		},
	}, testCase{
		name: "Attention/part of the queries, one row of bias for all of them and all heads", tol: attendTol(),
		run: func(r *rig) {
			q, kv, o := r.in("q", 2, 40, 3, 64), r.in("kv", 2, 70, 2, 3, 64), r.out("o", 2, 40, 3, 64)
			lse := r.writes(r.alloc("lse", engine.F32, nan, 2, 3, 40))
			bias := r.f32("bias", 1, 1, 90).Slice(2, 11, 81).Broadcast(0, 3)
			for _, part := range [][2]int{{0, 33}, {33, 40}} {
				rows := func(t engine.Tensor) engine.Tensor { return t.Slice(1, part[0], part[1]) }
				r.ops.Attention(rows(o), rows(q), kv.Index(2, 0), kv.Index(2, 1), engine.AttentionArgs{
					LSE: lse.Slice(2, part[0], part[1]), Bias: bias.Broadcast(1, part[1]-part[0]),
				})
			}
		},
	})
	return cases
}

// mergeCases splits the keys in two or three parts, merges the results and compares them with attention over all keys.
func mergeCases() []testCase {
	var cases []testCase
	for i, cuts := range [][]int{{7, 20}, {0, 20}, {20, 20}, {1, 5, 20}, {0, 0, 20}, {16, 17, 20}} {
		run := func(split bool) func(r *rig) {
			return func(r *rig) {
				q, kv := r.in("q", 2, 11, 3, 16), r.in("kv", 2, 20, 2, 3, 16)
				o, lse := r.out("o", 2, 11, 3, 16), r.writes(r.alloc("lse", engine.F32, nan, 2, 3, 11))
				if !split {
					r.ops.Attention(o, q, kv.Index(2, 0), kv.Index(2, 1), engine.AttentionArgs{LSE: lse})
					return
				}
				from := 0
				for n, to := range cuts {
					part := kv.Slice(1, from, to)
					into, intoLSE := o, lse
					if n > 0 {
						into, intoLSE = r.scratch(r.dtype, 2, 11, 3, 16), r.scratch(engine.F32, 2, 3, 11)
					}
					r.ops.Attention(into, q, part.Index(2, 0), part.Index(2, 1), engine.AttentionArgs{LSE: intoLSE})
					if n > 0 {
						r.ops.MergeAttention(o, lse, into, intoLSE)
					}
					from = to
				}
			}
		}
		tol := attendTol()
		tol.bf16 = 3e-2 // partial results are stored in bf16
		cases = append(cases, testCase{
			name: fmt.Sprintf("MergeAttention/%d cuts %v", i, cuts), tol: tol, run: run(true),
			oracle: run(false),
		})
	}
	return append(cases, testCase{name: "MergeAttention/one side or both empty", tol: attendTol(), run: func(r *rig) {
		negative := func() func() float32 {
			i := 0
			return func() float32 {
				i++
				if i%3 == 0 {
					return float32(math.Inf(-1))
				}
				return 10 * r.normal()
			}
		}
		lse := r.writes(r.alloc("lse", engine.F32, negative(), 2, 3, 5))
		lse2 := r.alloc("lse2", engine.F32, negative(), 2, 3, 5)
		r.ops.MergeAttention(r.inout("o", 2, 5, 3, 17), lse, r.in("o2", 2, 5, 3, 17), lse2)
		shifted := r.alloc("lse3", engine.F32, func() float32 { return 5 }, 2, 3, 5)
		r.ops.MergeAttention(r.inout("p", 2, 5, 3, 17), lse, r.in("p2", 2, 5, 3, 17), shifted)
	}})
}

// scratch returns a tensor that is neither checked nor compared. The rig frees it.
func (r *rig) scratch(dtype engine.DType, shape ...int) engine.Tensor {
	t := engine.NewTensor(engine.Buf{}, dtype, shape...)
	buf, err := r.ops.Alloc(t.Bytes())
	if err != nil {
		r.t.Fatalf("%s: alloc: %v", r.name, err)
	}
	r.other = append(r.other, buf)
	return engine.NewTensor(buf, dtype, shape...)
}
