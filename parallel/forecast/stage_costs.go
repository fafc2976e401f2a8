package forecast

import (
	"math"

	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// plainDevice counts every multiply-add alike and nothing else: for outlines of workloads that name no device.
func plainDevice() Device { return Device{GEMM: 1, Attention: 1, Traffic: math.Inf(1)} }

// blockSeconds is the cost of every block, and of embedding and head, on the first rank of a stage by the rates of the
// workload's device: what the patches of one evaluation take one after the other, all entries of the rank, exchanges
// not counted. It is the cost that the simulator works with, so what it predicts for stages is what they were cut by.
func (o *Outline) blockSeconds() (blocks []plan.BlockCost, ends [2]float64) {
	c := &costs{Outline: o, fabric: Fabric{Device: o.Device}}
	if o.Device == (Device{}) {
		c.fabric.Device = plainDevice()
	}
	at, b := plan.Coord{}, o.batch[0].Len()
	seconds := func(add func(l *load, rows []dit.Rows, entry int)) float64 {
		total := 0.0
		for j := range o.Patches {
			var l load
			for _, i := range o.entriesOf(0) {
				add(&l, o.rows(plan.Micro{Patch: j}, i), i)
			}
			total += c.compute(l)
		}
		return total
	}
	half := func(n int, h dit.Half) float64 {
		return seconds(func(l *load, rows []dit.Rows, i int) { c.addBlock(l, at, n, h, rows, i, b) })
	}
	seen := map[dit.BlockSpec]plan.BlockCost{} // blocks of one kind cost the same
	for n, spec := range o.Spec.Blocks {
		spec.Params, spec.AttentionParams, spec.MLPParams, spec.Skip = 0, 0, 0, min(spec.Skip, 0)
		cost, ok := seen[spec]
		switch {
		case ok:
		case spec.Cuts:
			cost = plan.BlockCost{Attention: half(n, dit.AttentionHalf), MLP: half(n, dit.MLPHalf)}
		default:
			cost = plan.BlockCost{Attention: half(n, dit.WholeBlock)}
		}
		seen[spec] = cost
		blocks = append(blocks, cost)
	}
	for k := range ends {
		ends[k] = seconds(func(l *load, rows []dit.Rows, _ int) {
			embed, head := c.endFlops(at, rows, b)
			l.gemm += [2]float64{embed, head}[k]
		})
	}
	return blocks, ends
}
