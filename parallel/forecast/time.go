package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// What the executor does in a block besides matrix products and attention, counted in a block of FLUX.
const (
	// rowPasses is how often a block reads or writes its rows [rows, E] for element-wise work: norms 4, queries and keys
	// 4, residuals 4.
	rowPasses = 12
	// mergePasses is the same for rows of a ring when a part of the attention is merged: two parts are read, one
	// written.
	mergePasses = 3
	// launches is how many operations the host launches for one block and stream.
	launches = 9
	// launchGap is the time in seconds between two operations of a recorded graph, in which the device drains and fills
	// again. It is the price of many small patches.
	launchGap = 1e-6
)

// costs predicts the seconds of micro-steps of one plan on one cluster.
type costs struct {
	*Partition
	cluster hardware.Cluster
	spread  *costs                        // for spread evaluations, nil if the plan has none
	lanes   [][]laneCost                  // by group (data part and cfg group) and lane; equal groups share theirs
	wires   [plan.AxisCount]hardware.Wire // pipe: to the next stage; ulysses: to all; the others: to the neighbor
}

func newCosts(o *Partition, f hardware.Cluster) *costs {
	c := &costs{Partition: o, cluster: f}
	for a := range plan.AxisCount {
		if ranks, _ := o.mesh.Along(a, plan.Coord{}); len(ranks) == 1 {
			continue
		}
		pattern := hardware.ToNeighbour
		switch a {
		case plan.AxisUlysses:
			pattern = hardware.ToAll
		case plan.AxisPipe:
			pattern = hardware.ToNext
		}
		c.wires[a] = f.Wire(o.groups(a), pattern)
	}
	c.lanes = make([][]laneCost, o.plan.Data*o.plan.CFG)
	for g := range c.lanes {
		at := plan.Coord{Data: g / o.plan.CFG, CFG: g % o.plan.CFG}
		if t := o.twin(at); t != at && f.Mixed == nil {
			c.lanes[g] = c.lanes[t.Data*o.plan.CFG+t.CFG]
			continue
		}
		c.lanes[g] = make([]laneCost, len(o.Lanes))
	}
	if o.spreadOut != nil {
		c.spread = newCosts(o.spreadOut, f)
	}
	return c
}

// laneCost is the cost of the micro-steps of a lane, by their size.
type laneCost [microSizes]microCost

// microCost is the time in seconds of a lane's work, with the load of each of its ranks, and of one entry's transfer.
type microCost struct {
	known             bool
	seconds, transfer float64
	loads             []load
}

// work returns the cost of a micro-step of lane k of a group.
func (c *costs) work(group, k int, m plan.Micro) *microCost {
	at := &c.lanes[group][k][c.size(m)]
	if !at.known {
		data, cfg := group/c.plan.CFG, group%c.plan.CFG
		at.known = true
		at.seconds, at.loads = c.microSeconds(data, cfg, k, m)
		entries := c.entries[cfg]
		for _, i := range entries { // the mean of all, which follow one another on one link
			at.transfer += c.transfer(data, m, i) / float64(len(entries))
		}
	}
	return at
}

// microSeconds is laneSeconds, but for spread evaluations the time of all stages together, with the loads of this
// stage's ranks.
func (c *costs) microSeconds(data, cfg, k int, m plan.Micro) (float64, []load) {
	if !m.Whole || c.spread == nil {
		return c.laneSeconds(data, cfg, k, m)
	}
	s, loads := c.spread.laneSeconds(data, cfg, 0, m)
	if k >= c.plan.Pipe { // the down lanes do all of it
		return s, nil
	}
	n := len(loads) / c.plan.Pipe
	return s, loads[k*n : (k+1)*n]
}

// groups returns the groups of ranks along an axis.
func (o *Partition) groups(a plan.Axis) [][]int {
	var out [][]int
	for r := range o.plan.Ranks() {
		if ranks, at := o.mesh.Along(a, o.mesh.At(r)); at == 0 {
			out = append(out, ranks)
		}
	}
	return out
}

// load is the work of one rank in some blocks.
type load struct {
	on              *hardware.Device // of the rank
	gemm, attention float64          // floating point operations, with those that hardware.Shapes adds
	bytes           float64          // of element-wise work
	launches        float64
	exchange        float64 // seconds of exchanges inside the stage that are not hidden
	sent            float64 // seconds of all exchanges inside the stage
}

// compute returns the seconds of arithmetic and memory, or of launching operations where that takes longer.
func (c *costs) compute(l load) float64 {
	d := l.on
	return max(l.gemm/d.GEMM+l.attention/d.Attention+l.bytes/d.Traffic+l.launches*launchGap, l.launches*d.Launch)
}

// addBlock adds what rank at does in block n for the rows of one entry with b items.
func (c *costs) addBlock(l *load, at plan.Coord, n int, rows []dit.Rows, entry, b int) {
	spec, blk := c.Spec, c.Spec.Blocks[n]
	e, mine := float64(spec.Width), rows[at.SequenceRank(c.plan)]
	text, image := float64(b*mine.Text.Len()), float64(b*mine.Image.Len())
	if blk.Kind == dit.Cross {
		text = 0
	}
	each := l.on.ProductRows
	if image > 0 {
		w := c.recorded(at, n, false, true)
		l.gemm += (image + each) * w.image
		l.attention += image * float64(c.Text[entry]) * w.cross * c.padding(l.on)
		if spec.Whole {
			l.attention += image * float64(mine.Image.Len()) * w.inside * c.padding(l.on)
			l.bytes += image * w.values * float64(c.cluster.Device.ValueBytes)
			l.launches += w.calls
			return
		}
	}
	if text > 0 {
		if image > 0 && blk.Kind != dit.Double {
			each = 0 // both streams are rows of the same products
		}
		l.gemm += (text + each) * c.recorded(at, n, true, false).text
	}
	share := 1.0
	if c.plan.Scatter { // element-wise work is on the rows kept
		share = 1 / float64(c.plan.Tensor)
	}
	l.bytes += (text + image) * e * share * rowPasses * float64(c.cluster.Device.ValueBytes)
	streams := 1.0
	if blk.Kind == dit.Double && text > 0 && image > 0 {
		streams = 2
	}
	l.launches += streams * launches
	plan.EachAttention(blk, func(imageOnly bool) { c.addAttention(l, at, rows, entry, b, imageOnly) })
	c.addExchanges(l, at, n, rows, b, c.alike(entry))
}

// addAttention adds one attention over the whole sequence.
func (c *costs) addAttention(l *load, at plan.Coord, rows []dit.Rows, entry, b int, imageOnly bool) {
	d, g, value := float64(c.Spec.HeadDim), float64(c.Spec.Group()), float64(c.cluster.Device.ValueBytes)
	heads := float64(c.heads(at)[at.Ulysses].Len())
	keys := c.Sequence(entry).Image
	if !imageOnly {
		keys += c.Sequence(entry).Text
	}
	if imageOnly {
		keys += c.preface(entry)
	}
	queries := c.gathered(rows, at.Ring, imageOnly)
	l.attention += 4 * float64(b*queries) * float64(keys) * heads * g * d * c.padding(l.on)
	if c.plan.KV8 { // every row is read or written once in 8 bits and once in the type of activations
		l.bytes += 2 * float64(b*keys) * heads * d * (1 + value)
	}
	l.bytes += float64(c.merges(at)) * float64(b*queries) * heads * g * d * mergePasses * value
}

// merges returns how many parts of an attention rank at merges with the first one.
func (c *costs) merges(at plan.Coord) int {
	switch places := c.plan.Ring; {
	case c.gathers() && !c.hides():
		return 0
	case c.gathers() && 0 < at.Ring && at.Ring < places-1: // its own keys, those before and those behind them
		return 2
	case c.gathers():
		return 1
	default:
		return places - 1
	}
}

// hides reports whether ranks attend to their own keys while they gather those of others.
func (c *costs) hides() bool { return c.plan.Ring > 1 && c.gathers() && !c.stored() && c.plan.Overlap }

// ownSeconds returns how long rank at attends to its own keys in block n, for the rows of one entry with b items.
func (c *costs) ownSeconds(l *load, at plan.Coord, n int, rows []dit.Rows, b int) float64 {
	pairs, d := 0.0, float64(c.Spec.HeadDim*c.Spec.Group())
	plan.EachAttention(c.Spec.Blocks[n], func(imageOnly bool) {
		own := float64(c.gathered(rows, at.Ring, imageOnly))
		pairs += float64(b) * own * own
	})
	return 4 * pairs * float64(c.heads(at)[at.Ulysses].Len()) * d * c.padding(l.on) / l.on.Attention
}

// padding returns how many times the work of its heads attention does on a device.
func (c *costs) padding(d *hardware.Device) float64 {
	return float64(d.Head(c.Spec.HeadDim)) / float64(c.Spec.HeadDim)
}

// addExchanges adds the exchanges of rank at in block n.
func (c *costs) addExchanges(l *load, at plan.Coord, n int, rows []dit.Rows, b, sound int) {
	var sent [plan.AxisCount]volume
	c.block(&sent, at, n, rows, b, sound)
	for a, v := range sent {
		hops, w := v.calls, c.wires[a]
		if plan.Axis(a) == plan.AxisRing && c.gathers() { // one gather takes R-1 hops around the ring
			hops *= int64(c.plan.Ring - 1)
		}
		s := float64(hops)*w.Latency + float64(v.bytes(c.cluster.Device.ValueBytes))*w.PerByte
		l.exchange += s
		if plan.Axis(a) == plan.AxisRing && c.hides() {
			l.exchange -= min(s, c.ownSeconds(l, at, n, rows, b))
		}
		l.sent += s
	}
}

// laneLoad returns what rank at does in lane k in one micro-step.
func (c *costs) laneLoad(at plan.Coord, k int, m plan.Micro) (l load) {
	b := c.batch[at.Data].Len()
	l.on = c.cluster.On(c.mesh.Rank(at))
	for _, i := range c.entries[at.CFG] {
		rows := c.rows(m, i)
		for _, n := range c.kinds[k] {
			one := load{on: l.on}
			c.addBlock(&one, at, n.block, rows, i, b)
			l.add(one, float64(n.count))
		}
		c.addEnds(&l, at, k, rows, b)
	}
	c.addBrought(&l, at, k)
	return l
}

// add adds n times another load.
func (l *load) add(one load, n float64) {
	l.gemm += n * one.gemm
	l.attention += n * one.attention
	l.bytes += n * one.bytes
	l.launches += n * one.launches
	l.exchange += n * one.exchange
	l.sent += n * one.sent
}

// addEnds adds embedding and head, if they are in lane k.
func (c *costs) addEnds(l *load, at plan.Coord, k int, rows []dit.Rows, b int) {
	image := float64(b * c.plan.Kept(rows[at.SequenceRank(c.plan)], at.Tensor).Image.Len())
	if k == 0 {
		l.gemm += 2 * image * float64(c.Spec.Width*c.Spec.FeaturesIn())
	}
	if !c.sends(k) {
		l.gemm += 2 * image * float64(c.Spec.Width*c.Spec.FeaturesOut())
	}
}

// laneSeconds returns the time of lane k of a data part and cfg group for a micro-step, and the load of each of its
// ranks. Exchanges keep the ranks together, so the slowest counts.
func (c *costs) laneSeconds(data, cfg, k int, m plan.Micro) (seconds float64, ranks []load) {
	for r := range c.plan.Ring * c.plan.Ulysses * c.plan.Tensor {
		at := c.mesh.At(r)
		at.Data, at.CFG, at.Pipe = data, cfg, c.Stage(k)
		l := c.laneLoad(at, k, m)
		ranks = append(ranks, l)
		seconds = max(seconds, c.compute(l)+l.exchange)
	}
	return seconds, ranks
}

// transfer returns the seconds of passing one entry's rows from one lane to the next.
func (c *costs) transfer(data int, m plan.Micro, entry int) float64 {
	rows := c.rows(m, entry)
	most := 0
	for _, r := range rows {
		most = max(most, c.plan.Kept(r, 0).Len(), c.plan.Kept(r, c.plan.Tensor-1).Len())
	}
	bytes := c.batch[data].Len() * most * c.Spec.Width * c.cluster.Device.ValueBytes
	return c.wires[plan.AxisPipe].Seconds(float64(bytes))
}
