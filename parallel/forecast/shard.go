package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// heldParams returns the number of parameters that rank c holds: those of its units or, where it holds a part of their
// bytes, 1/P of all units and two gather buffers, each as large as its largest unit.
func (o *Partition) heldParams(c plan.Coord) int64 {
	held := o.plan.Held(o.Lanes, c)
	units := o.unitParams(held)
	total, buffers := int64(0), [2]int64{}
	for u, n := range units {
		total += n
		at := plan.UnitBuffer(u, len(units)-1)
		buffers[at] = max(buffers[at], n)
	}
	if held.Parts <= 1 {
		return total
	}
	parts := int64(held.Parts)
	return (total+parts-1)/parts + buffers[0] + buffers[1]
}

// unitParams returns the parameters of every unit of weights on a tensor rank, 0 for those that are not held: the
// blocks, then everything outside of them.
func (o *Partition) unitParams(held dit.Held) []int64 {
	outside, t := o.Spec.Params, int64(o.plan.Tensor)
	out := make([]int64, len(o.Spec.Blocks), len(o.Spec.Blocks)+1)
	for n, b := range o.Spec.Blocks {
		outside -= b.Params
		if held.Has(n) {
			out[n] = b.Params - b.Split + (b.Split+t-1)/t
		}
	}
	if held.NoEmbed {
		outside -= o.Spec.EmbedParams
	}
	if held.NoHead {
		outside -= o.Spec.HeadParams
	}
	return append(out, outside)
}

// shardVolume returns what a rank sends in a session for units to be gathered: its part of each to P-1 others.
func (o *Partition) shardVolume() (v volume) {
	if o.plan.Parts() == 1 {
		return v
	}
	units, parts := o.unitParams(dit.Held{}), int64(o.plan.Parts())
	for _, u := range plan.GatheredUnits(len(o.Spec.Blocks), o.Evaluations) {
		v.add(1, (units[u]+parts-1)/parts*(parts-1))
	}
	return v
}

// addShards adds the gathers of one evaluation. The next unit is gathered while the current one is in use, so only what
// takes longer counts; work is assumed to be spread evenly over the units.
func (c *costs) addShards(l *load) {
	if c.plan.Parts() == 1 {
		return
	}
	units, parts, w := c.unitParams(dit.Held{}), int64(c.plan.Parts()), c.wires[plan.AxisShard]
	work := (c.compute(*l) + l.exchange) / float64(len(units))
	if !c.plan.Overlap {
		work = 0
	}
	for _, n := range units {
		s := w.Seconds(float64((n+parts-1)/parts*(parts-1)) * c.cluster.Device.WeightBytes)
		l.exchange += max(0, s-work)
		l.sent += s
	}
}
