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

// Linear is queued with a copy of w (see keep).
func (d *Ops) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	engine.CheckLinear(y, x, w, e)
	w = keep(w)
	d.push(func() { d.inner.Linear(y, x, w, e) })
}

// Attention is queued with a copy of a.KeyLen.
func (d *Ops) Attention(o, q, k, v engine.Tensor, a engine.AttentionArgs) {
	engine.CheckAttention(o, q, k, v, a)
	a.KeyLen = slices.Clone(a.KeyLen)
	d.push(func() { d.inner.Attention(o, q, k, v, a) })
}

// Gather is queued with a copy of ids.
func (d *Ops) Gather(y, table engine.Tensor, ids []int32) {
	engine.CheckGather(y, table, ids)
	copied := slices.Clone(ids)
	d.push(func() { d.inner.Gather(y, table, copied) })
}

// Conv2D is queued with a copy of w (see keep).
func (d *Ops) Conv2D(y, x engine.Tensor, w *engine.Weight, a engine.ConvArgs) {
	engine.CheckConv2D(y, x, w, a)
	w = keep(w)
	d.push(func() { d.inner.Conv2D(y, x, w, a) })
}
