package forecast

import (
	"fmt"

	"patchbay/engine/profile"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// AddSpan adds the time of a span of a profile to Products, Attention or Other. Preparing texts and modulations, copies
// to and from the host, and exchanges belong to none of these.
func (t *RankTime) AddSpan(s profile.Span) {
	at := &t.Other
	switch s.Op {
	case "Upload", "Download":
		return
	case "Linear":
		at = &t.Products
	case "Attention":
		at = &t.Attention
	}
	switch s.Layer {
	case "embed", "qkv", "attention", "mlp", "head":
		*at += s.Took.Seconds()
	}
}

// Measure replaces the rates of m.Device by those of a profiled run of w on one rank: the floating-point operations of
// its products and attentions, and the bytes of its element-wise work as the planner counts them, divided by the time
// that such operations took from embedding to head. valueBytes is the size of an activation. It returns an error if
// products, attention or other work are missing from the spans.
func Measure(m *hardware.Machine, w Workload, spans []profile.Span, valueBytes int) error {
	var t RankTime
	for _, s := range spans {
		t.AddSpan(s)
	}
	products, attentions, rest := t.Products, t.Attention, t.Other
	if products <= 0 || attentions <= 0 || rest <= 0 {
		return fmt.Errorf("measure rates: the profile has %.3g s of products, %.3g s of attention and %.3g s of other "+
			"work: want some of each, from one rank", products, attentions, rest)
	}
	d := m.Device
	d.ValueBytes = valueBytes
	c := newCosts(NewPartition(w, plan.OneRank()), hardware.Cluster{Device: d, Link: m.Link, Hosts: 1, PerHost: 1})
	l, n := c.laneLoad(plan.Coord{}, 0, plan.Micro{Whole: true}), float64(w.Evaluations)
	d.GEMM, d.Attention, d.Traffic = n*l.gemm/products, n*l.attention/attentions,
		n*l.bytes/rest
	m.Device = d
	return nil
}
