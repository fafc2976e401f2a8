package engine

// attentionStats reports whether t is f32 [B, H, Lq] for queries o [B, Lq, H, D].
func attentionStats(t, o Tensor) bool {
	return t.DType == F32 && t.rank == 3 && t.shape[0] == o.shape[0] && t.shape[1] == o.shape[2] &&
		t.shape[2] == o.shape[1] && t.RowContiguous()
}

// CheckQKNormRoPE panics unless the operands fit Ops.QKNormRoPE.
func CheckQKNormRoPE(dq, dk, dv, q, k, v Tensor, n QKNorm, r RoPE) {
	if rule := qkRule(dq, dk, dv, q, k, v, n, r); rule != "" {
		fail("QKNormRoPE", rule, "dq dk dv q k v q_scale k_scale q_bias k_bias cos sin",
			dq, dk, dv, q, k, v, n.QScale, n.KScale, n.QBias, n.KBias, r.Cos, r.Sin)
	}
}

func qkRule(dq, dk, dv, q, k, v Tensor, n QKNorm, r RoPE) string {
	if rule := pair(dk, k); rule != "" {
		return "k: " + rule
	}
	if k.rank != 4 {
		return "k must be [B, L, H, D]"
	}
	if rule := optionalPair(dq, q, k); rule != "" {
		return "q: " + rule
	}
	if rule := optionalPair(dv, v, k); rule != "" {
		return "v: " + rule
	}
	l, d := k.shape[1], k.shape[3]
	switch {
	case n.Kind > LayerNorm:
		return "unknown normalisation"
	case n.Kind == NoNorm && !(n.QScale.IsZero() && n.KScale.IsZero()):
		return "scales need a normalisation"
	case n.Kind != LayerNorm && !(n.QBias.IsZero() && n.KBias.IsZero()):
		return "biases need LayerNorm"
	case !vector(n.QScale, d) || !vector(n.KScale, d) || !vector(n.QBias, d) || !vector(n.KBias, d):
		return "scales and biases must be [D] f32"
	case r.Cos.IsZero() != r.Sin.IsZero():
		return "cos and sin must both be present or both absent"
	case r.Cos.IsZero():
		return ""
	case d%2 != 0:
		return "rotation needs an even D"
	case !table(r.Cos, l, d/2) || !table(r.Sin, l, d/2):
		return "cos and sin must be [L, D/2] f32"
	}
	return ""
}

// optionalPair checks a destination and source that are both absent or both like k.
func optionalPair(dst, src, k Tensor) string {
	if dst.IsZero() && src.IsZero() {
		return ""
	}
	if rule := pair(dst, src); rule != "" {
		return rule
	}
	if !SameShape(src, k) || src.DType != k.DType {
		return "must have shape and dtype of k"
	}
	return ""
}

// table reports whether t is f32 [rows, cols].
func table(t Tensor, rows, cols int) bool {
	return t.DType == F32 && t.rank == 2 && t.shape[0] == rows && t.shape[1] == cols && t.RowContiguous()
}

// CheckAttention panics unless the operands fit Ops.Attention.
func CheckAttention(o, q, k, v Tensor, a AttentionArgs) {
	if rule := attentionRule(o, q, k, v, a); rule != "" {
		fail("Attention", rule, "o q k v bias lse", o, q, k, v, a.Bias, a.LSE)
	}
}

func attentionRule(o, q, k, v Tensor, a AttentionArgs) string {
	if rule := pair(o, q); rule != "" {
		return rule
	}
	if rule := activation(k, q); rule != "" {
		return "k: " + rule
	}
	if rule := like(v, k); rule != "" {
		return "v: " + rule
	}
	switch {
	case q.rank != 4 || k.rank != 4:
		return "q and k must be [B, L, H, D]"
	case q.shape[0] != k.shape[0] || q.shape[2] != k.shape[2] || q.shape[3] != k.shape[3]:
		return "q and k must agree in B, H and D"
	case a.Causal && q.shape[1] != k.shape[1]:
		return "causal attention needs Lq = Lk"
	case !a.LSE.IsZero() && !attentionStats(a.LSE, q):
		return "LSE must be [B, H, Lq] f32"
	case Overlaps(o, q) || Overlaps(o, k) || Overlaps(o, v):
		return "o must not alias q, k or v"
	}
	if b := a.Bias; !b.IsZero() {
		if b.DType != F32 || b.rank != 3 || b.shape[0] != q.shape[2] || b.shape[1] != q.shape[1] ||
			b.shape[2] != k.shape[1] || !b.RowContiguous() {
			return "bias must be [H, Lq, Lk] f32"
		}
	}
	if a.KeyLen != nil && len(a.KeyLen) != q.shape[0] {
		return "KeyLen must have B entries"
	}
	for _, n := range a.KeyLen {
		if n < 0 || n > k.shape[1] {
			return "KeyLen must be in [0, Lk]"
		}
	}
	return ""
}

// CheckMergeAttention panics unless the operands fit Ops.MergeAttention.
func CheckMergeAttention(o, lse, o2, lse2 Tensor) {
	rule := pair(o, o2)
	switch {
	case rule != "":
	case o.rank != 4:
		rule = "o must be [B, Lq, H, D]"
	case !attentionStats(lse, o) || !attentionStats(lse2, o):
		rule = "lse must be [B, H, Lq] f32"
	case Overlaps(o, o2) || Overlaps(lse, lse2):
		rule = "the two results must not alias"
	}
	if rule != "" {
		fail("MergeAttention", rule, "o lse o2 lse2", o, lse, o2, lse2)
	}
}
