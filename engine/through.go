package engine

// Through implements the computing methods of Ops by passing every call to Do. Types that count, time or postpone calls
// embed it and define the methods that return a value, plus those that they treat differently.
type Through struct {
	// Do receives a call: the name of its method, the check of its operands, and a function that makes it on another
	// Ops.
	Do func(op string, check func(), call func(Ops))
}

func (t Through) Upload(dst Tensor, src []float32) {
	t.Do("Upload", func() { CheckUpload(dst, len(src)) }, func(ops Ops) { ops.Upload(dst, src) })
}

func (t Through) Copy(dst, src Tensor) {
	t.Do("Copy", func() { CheckCopy(dst, src) }, func(ops Ops) { ops.Copy(dst, src) })
}

func (t Through) Fill(dst Tensor, v float32) {
	t.Do("Fill", func() { CheckFill(dst) }, func(ops Ops) { ops.Fill(dst, v) })
}

func (t Through) Linear(y, x Tensor, w *Weight, e Epilogue) {
	t.Do("Linear", func() { CheckLinear(y, x, w, e) }, func(ops Ops) { ops.Linear(y, x, w, e) })
}

func (t Through) LayerNorm(y, x, w, b Tensor, eps float32) {
	t.Do("LayerNorm", func() { CheckLayerNorm(y, x, w, b) }, func(ops Ops) { ops.LayerNorm(y, x, w, b, eps) })
}

func (t Through) AdaLN(y, x, shift, scale Tensor, eps float32) {
	t.Do("AdaLN", func() { CheckAdaLN(y, x, shift, scale) }, func(ops Ops) { ops.AdaLN(y, x, shift, scale, eps) })
}

func (t Through) RMSNorm(y, x, w Tensor, eps float32) {
	t.Do("RMSNorm", func() { CheckRMSNorm(y, x, w) }, func(ops Ops) { ops.RMSNorm(y, x, w, eps) })
}

func (t Through) GatedAdd(y, x, gate, r, bias Tensor) {
	t.Do("GatedAdd", func() { CheckGatedAdd(y, x, gate, r, bias) }, func(ops Ops) { ops.GatedAdd(y, x, gate, r, bias) })
}

func (t Through) Add(y, a, b Tensor) {
	t.Do("Add", func() { CheckAdd(y, a, b) }, func(ops Ops) { ops.Add(y, a, b) })
}

func (t Through) Activate(y, x Tensor, act Act) {
	t.Do("Activate", func() { CheckActivate(y, x, act) }, func(ops Ops) { ops.Activate(y, x, act) })
}

func (t Through) ActivateMul(y, a, b Tensor, act Act) {
	t.Do("ActivateMul", func() { CheckActivateMul(y, a, b, act) }, func(ops Ops) { ops.ActivateMul(y, a, b, act) })
}

func (t Through) QKNormRoPE(dq, dk, dv, q, k, v Tensor, n QKNorm, r RoPE) {
	t.Do("QKNormRoPE", func() { CheckQKNormRoPE(dq, dk, dv, q, k, v, n, r) },
		func(ops Ops) { ops.QKNormRoPE(dq, dk, dv, q, k, v, n, r) })
}

func (t Through) Attention(o, q, k, v Tensor, a AttentionArgs) {
	t.Do("Attention", func() { CheckAttention(o, q, k, v, a) }, func(ops Ops) { ops.Attention(o, q, k, v, a) })
}

func (t Through) MergeAttention(o, lse, o2, lse2 Tensor) {
	t.Do("MergeAttention", func() { CheckMergeAttention(o, lse, o2, lse2) },
		func(ops Ops) { ops.MergeAttention(o, lse, o2, lse2) })
}

func (t Through) Quantise(q, scale, x Tensor) {
	t.Do("Quantise", func() { CheckQuantise(q, scale, x) }, func(ops Ops) { ops.Quantise(q, scale, x) })
}

func (t Through) Dequantise(y, q, scale Tensor) {
	t.Do("Dequantise", func() { CheckDequantise(y, q, scale) }, func(ops Ops) { ops.Dequantise(y, q, scale) })
}

func (t Through) Gather(y, table Tensor, ids []int32) {
	t.Do("Gather", func() { CheckGather(y, table, ids) }, func(ops Ops) { ops.Gather(y, table, ids) })
}

func (t Through) MeanRows(y, x Tensor) {
	t.Do("MeanRows", func() { CheckMeanRows(y, x) }, func(ops Ops) { ops.MeanRows(y, x) })
}

func (t Through) Conv2D(y, x Tensor, w *Weight, a ConvArgs) {
	t.Do("Conv2D", func() { CheckConv2D(y, x, w, a) }, func(ops Ops) { ops.Conv2D(y, x, w, a) })
}

func (t Through) GroupNormStats(stats, x Tensor, groups int) {
	t.Do("GroupNormStats", func() { CheckGroupNormStats(stats, x, groups) },
		func(ops Ops) { ops.GroupNormStats(stats, x, groups) })
}

func (t Through) GroupNormApply(y, x, stats, w, b Tensor, count int, eps float32, act Act) {
	t.Do("GroupNormApply", func() { CheckGroupNormApply(y, x, stats, w, b, count, act) },
		func(ops Ops) { ops.GroupNormApply(y, x, stats, w, b, count, eps, act) })
}

func (t Through) Upsample2x(y, x Tensor) {
	t.Do("Upsample2x", func() { CheckUpsample2x(y, x) }, func(ops Ops) { ops.Upsample2x(y, x) })
}
