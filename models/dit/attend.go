package dit

import "patchbay/engine"

// Whole is the Attend hook for one rank that computes all rows of the sequence at once: normalise and rotate in place,
// attend, done. It is also the reference that every split attention is compared with.
func Whole(ops engine.Ops) func(Attention) {
	return func(a Attention) {
		Normalise(ops, a)
		ops.Attention(a.Out, a.Q, a.K, a.V, engine.AttentionArgs{Scale: a.Scale})
	}
}

// Normalise applies norms and rotation of a in place: to the text rows with TextNorm, to the image rows with ImageNorm.
func Normalise(ops engine.Ops, a Attention) {
	lt, l := a.Rows.Text.Len()-a.References, a.Rows.Len()
	part := func(lo, hi int, n engine.QKNorm) {
		if lo == hi {
			return
		}
		q, k := a.Q.Slice(1, lo, hi), a.K.Slice(1, lo, hi)
		r := a.RoPE
		if !r.Cos.IsZero() {
			r = engine.RoPE{Cos: r.Cos.Slice(0, lo, hi), Sin: r.Sin.Slice(0, lo, hi)}
		}
		ops.QKNormRoPE(q, k, engine.Tensor{}, q, k, engine.Tensor{}, n, r)
	}
	part(0, lt, a.TextNorm)
	part(lt, l, a.ImageNorm)
}
