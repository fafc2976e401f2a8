package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// heldParams returns the number of parameters that rank c keeps on its device, those of its units or, where units are
// gathered, 1/P of all, without what it reads from host memory; and the size of the slots and staging places to which
// each of its lanes brings the others, each as large as the largest that it takes.
func (o *Partition) heldParams(c plan.Coord) (stay, slots int64) {
	held := o.plan.Held(o.Lanes, c)
	units, n, parts := o.unitParams(held), len(o.Spec.Blocks), int64(max(held.Parts, 1))
	streamed, room := held.Streamed(n), [4]int64{}
	places, stagings := held.Places(n)
	for u, size := range units {
		if u == n || !streamed[u] {
			stay += size
		}
		if at := places[u]; at >= 0 {
			room[at] = max(room[at], size)
		}
		if at := stagings[u]; at >= 0 {
			room[2+at] = max(room[2+at], (size+parts-1)/parts)
		}
	}
	return (stay + parts - 1) / parts, (room[0] + room[1] + room[2] + room[3]) * int64(len(o.lanesOf(c)))
}

// unitParams returns the parameters of every unit of weights on a tensor rank, 0 for those that are not held: the
// blocks, then everything outside of them.
func (o *Partition) unitParams(held dit.Held) []int64 {
	outside := o.Spec.Params
	out := make([]int64, len(o.Spec.Blocks), len(o.Spec.Blocks)+1)
	for n, b := range o.Spec.Blocks {
		outside -= b.Params
		if held.Has(n) {
			out[n] = b.HeldParams(held)
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

// broughtVolumes returns what rank c brings in a session: how often it reads a part of a unit from host memory and how
// many parameters that are, and what it sends for units to be gathered: its part of each to P-1 others.
func (o *Partition) broughtVolumes(c plan.Coord) (read, sent volume) {
	held := o.plan.Held(o.Lanes, c)
	if held.Parts <= 1 && held.Stream == 0 {
		return read, sent
	}
	units, parts := o.unitParams(held), int64(max(held.Parts, 1))
	for _, k := range o.lanesOf(c) {
		for _, b := range plan.Brought(held, len(o.Spec.Blocks), o.Lanes[k], len(o.micros()), !o.sends(k)) {
			part := (units[b.Unit] + parts - 1) / parts
			if b.Read {
				read.add(1, part)
			} else {
				sent.add(1, part*(parts-1))
			}
		}
	}
	return read, sent
}

// addBrought adds what is brought in one micro-step of lane k. The next unit is brought while the current one is in
// use, so only what takes longer counts; work is assumed to be spread evenly over the units.
func (c *costs) addBrought(l *load, at plan.Coord, k int) {
	held := c.plan.Held(c.Lanes, at)
	if held.Parts <= 1 && held.Stream == 0 {
		return
	}
	units, n, parts := c.unitParams(held), len(c.Spec.Blocks), int64(max(held.Parts, 1))
	gather, lane, streamed := c.wires[plan.AxisShard], c.Lanes[k], append(held.Streamed(n), false)
	var seconds []float64 // of each unit that is brought
	for u, size := range units {
		part, s := float64((size+parts-1)/parts)*c.cluster.Device.WeightBytes, 0.
		if u < n && !lane.Has(u) {
			continue
		}
		if parts > 1 {
			s = gather.Seconds(part * float64(parts-1))
		}
		if streamed[u] {
			s = max(s, part/l.on.HostRate())
		}
		if parts > 1 || streamed[u] {
			seconds = append(seconds, s)
		}
	}
	work := (c.compute(*l) + l.exchange) / float64(max(len(seconds), 1))
	if !c.plan.Overlap {
		work = 0
	}
	if parts == 1 && len(seconds) <= 2 { // they stay in their slots
		return
	}
	for _, s := range seconds {
		l.exchange += max(0, s-work)
		l.sent += s
	}
}

// streamedParams returns the number of parameters that rank c reads from host memory.
func (o *Partition) streamedParams(c plan.Coord) (params int64) {
	held := o.plan.Held(o.Lanes, c)
	units, parts := o.unitParams(held), int64(max(held.Parts, 1))
	for u, streamed := range held.Streamed(len(o.Spec.Blocks)) {
		if streamed {
			params += (units[u] + parts - 1) / parts
		}
	}
	return params
}
