package forecast

import "patchbay/parallel/plan"

// heldParams returns the number of parameters that rank c holds, as plan.Plan.Held divides them.
func (o *Partition) heldParams(c plan.Coord) (n int64) {
	switch {
	case o.plan.Owns():
		return o.stageParams(c)
	case o.plan.Shard:
		return o.shardParams()
	}
	for _, unit := range o.unitParams() {
		n += unit
	}
	return n
}

// unitParams returns the parameters of every unit of sharded weights on a tensor rank: the blocks, then everything
// outside of them.
func (o *Partition) unitParams() []int64 {
	var out []int64
	for n := range o.Spec.Blocks {
		out = append(out, o.blockParams(n))
	}
	return append(out, o.outside())
}

// stageParams returns the parameters of rank c where stages own their weights: its tensor slice of the blocks.
func (o *Partition) stageParams(c plan.Coord) int64 {
	h, n := o.plan.Held(o.Lanes, c), o.outside()
	if h.NoEmbed {
		n -= o.Spec.EmbedParams
	}
	if h.NoHead {
		n -= o.Spec.HeadParams
	}
	for i := range o.Spec.Blocks {
		if h.Has(i) {
			n += o.blockParams(i)
		}
	}
	return n
}

// shardParams returns the parameters that a rank holds of sharded weights: 1/P of all units and two gather buffers,
// each as large as its largest unit.
func (o *Partition) shardParams() int64 {
	units := o.unitParams()
	total, places := int64(0), [2]int64{}
	for u, n := range units {
		total += n
		p := plan.UnitBuffer(u, len(units)-1)
		places[p] = max(places[p], n)
	}
	parts := int64(o.plan.Parts())
	return (total+parts-1)/parts + places[0] + places[1]
}

// shardVolume returns what a rank sends in a session for units to be gathered: its part of each to P-1 others.
func (o *Partition) shardVolume() (v volume) {
	if o.plan.Parts() == 1 {
		return v
	}
	units, parts := o.unitParams(), int64(o.plan.Parts())
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
	units, parts, w := c.unitParams(), int64(c.plan.Parts()), c.wires[plan.AxisShard]
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
