package deferred

import (
	"slices"

	"patchbay/engine"
)

// keep copies a weight, so that changing its adapters or bias after the call has no effect.
func keep(w *engine.Weight) *engine.Weight {
	packed := func(p *engine.Packed) *engine.Packed {
		c := *p
		return &c
	}
	c := *w
	c.Base, c.Adapters = packed(w.Base), slices.Clone(w.Adapters)
	for i, a := range c.Adapters {
		c.Adapters[i].Down, c.Adapters[i].Up = packed(a.Down), packed(a.Up)
	}
	return &c
}

// Linear is queued with a copy of w.
func (d *Ops) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	engine.CheckLinear(y, x, w, e)
	w = keep(w)
	d.push(func() { d.inner.Linear(y, x, w, e) })
}

// LayerNorm is queued.
func (d *Ops) LayerNorm(y, x, w, b engine.Tensor, eps float32) {
	engine.CheckLayerNorm(y, x, w, b)
	d.push(func() { d.inner.LayerNorm(y, x, w, b, eps) })
}

// AdaLN is queued.
func (d *Ops) AdaLN(y, x, shift, scale engine.Tensor, eps float32) {
	engine.CheckAdaLN(y, x, shift, scale)
	d.push(func() { d.inner.AdaLN(y, x, shift, scale, eps) })
}

// RMSNorm is queued.
func (d *Ops) RMSNorm(y, x, w engine.Tensor, eps float32) {
	engine.CheckRMSNorm(y, x, w)
	d.push(func() { d.inner.RMSNorm(y, x, w, eps) })
}

// GatedAdd is queued.
func (d *Ops) GatedAdd(y, x, gate, r, bias engine.Tensor) {
	engine.CheckGatedAdd(y, x, gate, r, bias)
	d.push(func() { d.inner.GatedAdd(y, x, gate, r, bias) })
}

// Add is queued.
func (d *Ops) Add(y, a, b engine.Tensor) {
	engine.CheckAdd(y, a, b)
	d.push(func() { d.inner.Add(y, a, b) })
}

// Activate is queued.
func (d *Ops) Activate(y, x engine.Tensor, act engine.Act) {
	engine.CheckActivate(y, x, act)
	d.push(func() { d.inner.Activate(y, x, act) })
}

// ActivateMul is queued.
func (d *Ops) ActivateMul(y, a, b engine.Tensor, act engine.Act) {
	engine.CheckActivateMul(y, a, b, act)
	d.push(func() { d.inner.ActivateMul(y, a, b, act) })
}

// QKNormRoPE is queued.
func (d *Ops) QKNormRoPE(dq, dk, dv, q, k, v engine.Tensor, n engine.QKNorm, r engine.RoPE) {
	engine.CheckQKNormRoPE(dq, dk, dv, q, k, v, n, r)
	d.push(func() { d.inner.QKNormRoPE(dq, dk, dv, q, k, v, n, r) })
}

// Attention is queued with a copy of a.KeyLen.
func (d *Ops) Attention(o, q, k, v engine.Tensor, a engine.AttentionArgs) {
	engine.CheckAttention(o, q, k, v, a)
	a.KeyLen = slices.Clone(a.KeyLen)
	d.push(func() { d.inner.Attention(o, q, k, v, a) })
}

// MergeAttention is queued.
func (d *Ops) MergeAttention(o, lse, o2, lse2 engine.Tensor) {
	engine.CheckMergeAttention(o, lse, o2, lse2)
	d.push(func() { d.inner.MergeAttention(o, lse, o2, lse2) })
}

// Gather is queued with a copy of ids.
func (d *Ops) Gather(y, table engine.Tensor, ids []int32) {
	engine.CheckGather(y, table, ids)
	kept := slices.Clone(ids)
	d.push(func() { d.inner.Gather(y, table, kept) })
}

// Quantise is queued.
func (d *Ops) Quantise(q, scale, x engine.Tensor) {
	engine.CheckQuantise(q, scale, x)
	d.push(func() { d.inner.Quantise(q, scale, x) })
}

// Dequantise is queued.
func (d *Ops) Dequantise(y, q, scale engine.Tensor) {
	engine.CheckDequantise(y, q, scale)
	d.push(func() { d.inner.Dequantise(y, q, scale) })
}

// MeanRows is queued.
func (d *Ops) MeanRows(y, x engine.Tensor) {
	engine.CheckMeanRows(y, x)
	d.push(func() { d.inner.MeanRows(y, x) })
}

// Conv2D is queued with a copy of w.
func (d *Ops) Conv2D(y, x engine.Tensor, w *engine.Weight, a engine.ConvArgs) {
	engine.CheckConv2D(y, x, w, a)
	w = keep(w)
	d.push(func() { d.inner.Conv2D(y, x, w, a) })
}

// GroupNormStats is queued.
func (d *Ops) GroupNormStats(stats, x engine.Tensor, groups int) {
	engine.CheckGroupNormStats(stats, x, groups)
	d.push(func() { d.inner.GroupNormStats(stats, x, groups) })
}

// GroupNormApply is queued.
func (d *Ops) GroupNormApply(y, x, stats, w, b engine.Tensor, count int, eps float32, act engine.Act) {
	engine.CheckGroupNormApply(y, x, stats, w, b, count, act)
	d.push(func() { d.inner.GroupNormApply(y, x, stats, w, b, count, eps, act) })
}

// Upsample2x is queued.
func (d *Ops) Upsample2x(y, x engine.Tensor) {
	engine.CheckUpsample2x(y, x)
	d.push(func() { d.inner.Upsample2x(y, x) })
}
