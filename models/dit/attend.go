package dit

import "patchbay/engine"

// Whole returns the Attend hook of a rank that computes all rows of the sequence itself: it normalizes and rotates in
// place, then attends. It is also the reference that every split attention is tested against.
func Whole(ops engine.Ops, arena *engine.Arena) func(Attention) {
	return func(a Attention) {
		Normalise(ops, a)
		q, o := a.Groups(a.Q), a.Groups(a.Out)
		args := engine.AttentionArgs{Scale: a.Scale}
		AttendAfter(ops, arena, a.Preface, o, q, args, func(args engine.AttentionArgs) {
			Attend(ops, o, q, a.K, a.V, args)
		})
	}
}

// AttendAfter runs attend, which attends with queries q [B, L, K, G, D] over keys of its own and writes o and, where it
// is given, a.LSE, and merges with that the result over the keys of a preface [n, Lt, 2, K, D]. Without a preface it
// only runs attend.
func AttendAfter(ops engine.Ops, arena *engine.Arena, preface, o, q engine.Tensor, a engine.AttentionArgs,
	attend func(engine.AttentionArgs),
) {
	if preface.IsZero() || preface.Dim(1) == 0 {
		attend(a)
		return
	}
	mark := arena.Mark()
	b, l, h, g := q.Dim(0), q.Dim(1), q.Dim(2), q.Dim(3)
	before, lse := arena.Alloc(q.DType, q.Shape()...), arena.Alloc(engine.F32, g, b, h, l)
	if a.LSE.IsZero() {
		a.LSE = arena.Alloc(engine.F32, g, b, h, l)
	}
	attend(a)
	n := preface.Dim(0)
	r := b / n // items of an entry
	if r == 1 {
		n, r = 1, b // the entries are the items
	}
	for e := range n {
		kv := preface
		if n > 1 || preface.Dim(0) != b {
			kv = preface.Slice(0, e, e+1).Broadcast(0, r)
		}
		items := func(t engine.Tensor) engine.Tensor { return t.Slice(0, e*r, (e+1)*r) }
		Attend(ops, items(before), items(q), kv.Index(2, 0), kv.Index(2, 1), engine.AttentionArgs{
			Scale: a.Scale, LSE: lse.Slice(1, e*r, (e+1)*r),
		})
	}
	for i := range g {
		ops.MergeAttention(o.Index(3, i), a.LSE.Index(0, i), before.Index(3, i), lse.Index(0, i))
	}
	arena.Release(mark)
}

// Groups views queries or results [B, L, H, D] grouped by the K key heads that they read: [B, L, K, H/K, D].
// Consecutive query heads share a key head (grouped-query attention, arXiv:2305.13245).
func (a *Attention) Groups(t engine.Tensor) engine.Tensor {
	if k := a.K.Dim(2); k > 0 {
		return t.Split(2, k, t.Dim(2)/k)
	}
	return t.Split(2, 0, 1)
}

// Normalise normalizes and rotates the queries and keys of a in place: text rows with TextNorm, references and image
// rows with ImageNorm, all in one call where these are the same. Rows that have neither are left alone.
func Normalise(ops engine.Ops, a Attention) {
	each := func(lo, hi int, _ bool, _ Range, n engine.QKNorm, r engine.RoPE) {
		if n.Kind == engine.NoNorm && r.Cos.IsZero() {
			return
		}
		q, k := a.Groups(a.Q.Slice(1, lo, hi)), a.K.Slice(1, lo, hi)
		QKNormRoPE(ops, q, k, engine.Tensor{}, q, k, engine.Tensor{}, n, r)
	}
	if rows := a.Q.Dim(1); rows > 0 && sameNorm(&a.TextNorm, &a.ImageNorm) {
		each(0, rows, false, Range{}, a.ImageNorm, rotations(a.RoPE, 0, rows))
		return
	}
	EachNorm(a, each)
}

// sameNorm reports whether two norms have the same weights.
func sameNorm(a, b *engine.QKNorm) bool {
	return a.Kind == b.Kind && a.Eps == b.Eps && a.QScale.Same(b.QScale) && a.KScale.Same(b.KScale) &&
		a.QBias.Same(b.QBias) && a.KBias.Same(b.KBias)
}

// EachNorm calls visit for every non-empty run [lo, hi) of rows that share a norm: text, references, image. at is the
// position of the run in the text sequence, references included, or in the image sequence, n its norm and r its
// rotation.
func EachNorm(a Attention, visit func(lo, hi int, text bool, at Range, n engine.QKNorm, r engine.RoPE)) {
	lt, textRows := a.Rows.Text.Len(), a.Rows.Text.Len()-a.References
	part := func(lo, hi int, text bool, start int, n engine.QKNorm) {
		if lo == hi {
			return
		}
		visit(lo, hi, text, Range{start, start + hi - lo}, n, rotations(a.RoPE, lo, hi))
	}
	part(0, textRows, true, a.Rows.Text.Start, a.TextNorm)
	part(textRows, lt, true, a.Rows.Text.Start+textRows, a.ImageNorm)
	part(lt, a.Q.Dim(1), false, a.Rows.Image.Start, a.ImageNorm)
}

// rotations returns the tables of rows [lo, hi) of r, which may be absent.
func rotations(r engine.RoPE, lo, hi int) engine.RoPE {
	if r.Cos.IsZero() {
		return r
	}
	return engine.RoPE{Cos: r.Cos.Slice(0, lo, hi), Sin: r.Sin.Slice(0, lo, hi)}
}

// Attend runs Ops.Attention for queries q and results o [B, Lq, K, G, D], where the G queries of a group share one of
// the K heads of keys and values k, v [B, Lk, K, D]. a.LSE, if present, is [G, B, K, Lq].
func Attend(ops engine.Ops, o, q, k, v engine.Tensor, a engine.AttentionArgs) {
	lse := a.LSE
	for g := range q.Dim(3) {
		if !lse.IsZero() {
			a.LSE = lse.Index(0, g)
		}
		ops.Attention(o.Index(3, g), q.Index(3, g), k, v, a)
	}
}

// QKNormRoPE runs Ops.QKNormRoPE for grouped queries dq, q [B, L, K, G, D].
func QKNormRoPE(ops engine.Ops, dq, dk, dv, q, k, v engine.Tensor, n engine.QKNorm, r engine.RoPE) {
	if q.Dim(3) == 1 {
		ops.QKNormRoPE(dq.Index(3, 0), dk, dv, q.Index(3, 0), k, v, n, r)
		return
	}
	none := engine.Tensor{}
	ops.QKNormRoPE(none, dk, dv, none, k, v, n, r)
	n.KScale, n.KBias = n.QScale, n.QBias
	for g := range q.Dim(3) { // passed as keys: the operation requires as many query heads as key heads
		ops.QKNormRoPE(none, dq.Index(3, g), none, none, q.Index(3, g), none, n, r)
	}
}
