package dit

import "patchbay/engine"

// Whole is the Attend hook for one rank that computes all rows of the sequence at once: normalise and rotate in place,
// attend, done. It is also the reference that every split attention is compared with.
func Whole(ops engine.Ops) func(Attention) {
	return func(a Attention) {
		Normalise(ops, a)
		Attend(ops, a.Groups(a.Out), a.Groups(a.Q), a.K, a.V, engine.AttentionArgs{Scale: a.Scale})
	}
}

// Groups views queries or results [B, L, H, D] by the K heads of keys that they read: [B, L, K, H/K, D]. Heads that
// read the same keys are neighbours (grouped-query attention, arXiv:2305.13245).
func (a *Attention) Groups(t engine.Tensor) engine.Tensor {
	if k := a.K.Dim(2); k > 0 {
		return t.Split(2, k, t.Dim(2)/k)
	}
	return t.Split(2, 0, 1)
}

// Normalise applies norms and rotation of a in place: to the text rows with TextNorm, to the image rows with ImageNorm.
func Normalise(ops engine.Ops, a Attention) {
	EachNorm(a, func(lo, hi int, _ bool, _ Range, n engine.QKNorm, r engine.RoPE) {
		q, k := a.Groups(a.Q.Slice(1, lo, hi)), a.K.Slice(1, lo, hi)
		QKNormRoPE(ops, q, k, engine.Tensor{}, q, k, engine.Tensor{}, n, r)
	})
}

// EachNorm visits the rows of a call that are normalised alike, [lo, hi) of them, with their positions in the text or
// the image, their norm and their rotation; none are left out.
func EachNorm(a Attention, visit func(lo, hi int, text bool, at Range, n engine.QKNorm, r engine.RoPE)) {
	lt, own := a.Rows.Text.Len(), a.Rows.Text.Len()-a.References
	part := func(lo, hi int, text bool, start int, n engine.QKNorm) {
		if lo == hi {
			return
		}
		r := a.RoPE
		if !r.Cos.IsZero() {
			r = engine.RoPE{Cos: r.Cos.Slice(0, lo, hi), Sin: r.Sin.Slice(0, lo, hi)}
		}
		visit(lo, hi, text, Range{start, start + hi - lo}, n, r)
	}
	part(0, own, true, a.Rows.Text.Start, a.TextNorm)
	part(own, lt, true, a.Rows.Text.Start+own, a.ImageNorm)
	part(lt, a.Q.Dim(1), false, a.Rows.Image.Start, a.ImageNorm)
}

// Attend is Ops.Attention of queries o, q [B, Lq, K, G, D] of which all G of a group read one of K heads of keys and
// values k, v [B, Lk, K, D]. a.LSE, where present, is [G, B, K, Lq].
func Attend(ops engine.Ops, o, q, k, v engine.Tensor, a engine.AttentionArgs) {
	lse := a.LSE
	for g := range q.Dim(3) {
		if !lse.IsZero() {
			a.LSE = lse.Index(0, g)
		}
		ops.Attention(o.Index(3, g), q.Index(3, g), k, v, a)
	}
}

// QKNormRoPE is Ops.QKNormRoPE of queries dq, q [B, L, K, G, D] that come in groups.
func QKNormRoPE(ops engine.Ops, dq, dk, dv, q, k, v engine.Tensor, n engine.QKNorm, r engine.RoPE) {
	if q.Dim(3) == 1 {
		ops.QKNormRoPE(dq.Index(3, 0), dk, dv, q.Index(3, 0), k, v, n, r)
		return
	}
	none := engine.Tensor{}
	ops.QKNormRoPE(none, dk, dv, none, k, v, n, r)
	n.KScale, n.KBias = n.QScale, n.QBias
	for g := range q.Dim(3) { // queries go through as keys: the operation wants as many queries as keys
		ops.QKNormRoPE(none, dq.Index(3, g), none, none, q.Index(3, g), none, n, r)
	}
}
