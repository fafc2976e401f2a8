package plan

import (
	"fmt"

	"patchbay/engine/profile"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// addSpan adds the time of a span of a profile to Products, Attention or Other. Preparing texts and modulations, copies
// to and from the host, and exchanges belong to none of these.
func addSpan(t *forecast.RankTime, s profile.Span) {
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
func Measure(m *hardware.Machine, w forecast.Workload, spans []profile.Span, valueBytes int) error {
	var took forecast.RankTime
	for _, s := range spans {
		addSpan(&took, s)
	}
	if took.Products <= 0 || took.Attention <= 0 || took.Other <= 0 {
		return fmt.Errorf("measure rates: the profile has %.3g s of products, %.3g s of attention and %.3g s of other "+
			"work: want some of each, from one rank", took.Products, took.Attention, took.Other)
	}
	d := m.Device
	d.ValueBytes, d.GEMM, d.Attention, d.Traffic = valueBytes, 1, 1, 1 // a unit of work takes a second
	one := hardware.Cluster{Device: d, Link: m.Link, Hosts: 1, PerHost: 1}
	work := forecast.Search{Workload: w, Cluster: one}.Simulate(plan.OneRank()).Ranks[0]
	d.GEMM, d.Attention, d.Traffic = work.Products/took.Products, work.Attention/took.Attention, work.Other/took.Other
	m.Device = d
	return nil
}
