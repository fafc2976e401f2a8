package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Traffic is what one rank sends to other ranks along one axis.
type Traffic struct{ Calls, Bytes int64 }

// volume is what one rank sends to other ranks in some exchanges of one axis.
type volume struct {
	calls, values int64
	stats, floats int64 // f64 and f32 values, beside those of the type of activations
}

func (v *volume) add(calls, values int64) {
	v.calls += calls
	v.values += values
}

// statistics adds the sum of n f64 values over t ranks.
func (v *volume) statistics(n, t int64) {
	v.calls++
	v.stats += 2 * (t - 1) * n / t
}

// bytes returns the bytes of all values, those of activations being of the given size.
func (v *volume) bytes(value int) int64 { return v.values*int64(value) + 8*v.stats + 4*v.floats }

// attention adds what rank c sends for one attention over the rows of one entry with b items.
//
// Ulysses (arXiv:2309.14509, sec. 3.2, with uneven parts): a rank with l rows sends K and V of the other ranks' heads
// and the G heads of Q that read each of them, (G + 2) l b (K - k) D values. It returns the results of its own k heads
// for the other ranks' rows, (L - l) b G k D values, L being the rows of the group. Ring (arXiv:2310.01889): K and V of
// every place except the next one pass through, 2 b k D values per row. Where they are gathered, and with K/V stores,
// the fresh rows of this place go to the R-1 others instead.
func (o *Partition) attention(v *[plan.AxisCount]volume, c plan.Coord, rows []dit.Rows, b int, imageOnly bool) {
	d, g, u, r := int64(o.Spec.HeadDim), int64(o.Spec.Group()), o.plan.Ulysses, o.plan.Ring
	heads := o.heads(c)
	localHeads, all := int64(heads[c.Ulysses].Len()), int64(heads[u-1].End)
	mine := int64(attended(rows[c.SequenceRank(o.plan)], imageOnly))
	if u > 1 {
		group := int64(o.gathered(rows, c.Ring, imageOnly))
		v[plan.AxisUlysses].add(2, int64(b)*d*((g+2)*mine*(all-localHeads)+(group-mine)*g*localHeads))
	}
	if r == 1 {
		return
	}
	row := int64(b) * 2 * localHeads * d
	if o.gathers() {
		v[plan.AxisRing].add(1, int64(r-1)*row*int64(o.gathered(rows, c.Ring, imageOnly)))
		return
	}
	for step := range r - 1 {
		v[plan.AxisRing].add(1, row*int64(o.gathered(rows, (c.Ring+r-step)%r, imageOnly)))
	}
}

// block adds what rank c sends in block i for the rows of one entry with b items.
// sound is how many rows of sound all ranks have alike.
func (o *Partition) block(v *[plan.AxisCount]volume, c plan.Coord, i int, rows []dit.Rows, b, sound int) {
	spec := o.Spec.Blocks[i]
	plan.EachAttention(spec, func(imageOnly bool) { o.attention(v, c, rows, b, imageOnly) })
	mine := rows[c.SequenceRank(o.plan)]
	o.alikeBytes(v, c, rows, b, sound)
	if o.plan.Tensor == 1 {
		return
	}
	work := o.recorded(c, i, mine.Text.Len() > 0, mine.Image.Len() > 0)
	if t := int64(o.plan.Tensor); !o.plan.Scatter {
		for _, all := range work.sums {
			r := streams(all, mine)
			// an all-reduce as reduce-scatter and all-gather sends 2 (P-1)/P of the buffer
			v[plan.AxisTensor].add(1, 2*(t-1)*int64(b*r.Len()*o.Spec.Width)/t)
		}
	}
	if o.plan.Scatter {
		o.scattered(&v[plan.AxisTensor], c, work, mine, b)
	}
	for _, values := range work.stats {
		v[plan.AxisTensor].statistics(int64(values*float64(b*mine.Image.Len())), int64(o.plan.Tensor))
	}
}

// alike returns how many rows of sound all ranks have alike for entry i.
func (o *Partition) alike(i int) int {
	n := o.Spec.Alike(o.grid())
	if n > 0 {
		n += valueOf(o.SoundReferences, i)
	}
	return n
}

// alikeBytes adds what rank c sends for an attention whose queries all ranks have alike (dit.Env.AttendAlike): results
// with their log-sum-exp in f32, or where keys must be in order, keys and values.
func (o *Partition) alikeBytes(v *[plan.AxisCount]volume, c plan.Coord, rows []dit.Rows, b, sound int) {
	queries, u, r := int64(b*sound), int64(o.plan.Ulysses), int64(o.plan.Ring)
	if queries == 0 {
		return
	}
	width := int64(o.Spec.Sound.Width)
	send := func(axis plan.Axis, others, keys int64) {
		if others == 0 {
			return
		}
		if o.plan.InOrder() {
			v[axis].add(1, others*keys*int64(b)*2*width)
			return
		}
		v[axis].calls++
		v[axis].floats += others * queries * (width + int64(o.Spec.Sound.Heads))
	}
	send(plan.AxisUlysses, u-1, int64(attended(rows[c.SequenceRank(o.plan)], true)))
	send(plan.AxisRing, r-1, int64(o.gathered(rows, c.Ring, true)))
}

// scattered adds the gathers and scatters of a block (arXiv:2205.05198, sec. 4.2.2), one call for each item and stream.
// A rank sends its l rows to the P-1 others in a gather, (P-1) l E values, and the rows of the others among the group's
// L in a scatter, (L - l) E values.
func (o *Partition) scattered(v *volume, c plan.Coord, work *blockWork, mine dit.Rows, b int) {
	e, t := int64(o.Spec.Width), int64(o.plan.Tensor)
	each := func(list []dit.Rows, values func(all, rows int) int64) {
		for _, all := range list {
			r, k := streams(all, mine), o.plan.Kept(mine, c.Tensor)
			if r.Text.Len() > 0 {
				v.add(int64(b), int64(b)*values(r.Text.Len(), k.Text.Len()))
			}
			if r.Image.Len() > 0 {
				v.add(int64(b), int64(b)*values(r.Image.Len(), k.Image.Len()))
			}
		}
	}
	each(work.gathers, func(_, rows int) int64 { return (t - 1) * int64(rows) * e })
	each(work.sums, func(all, rows int) int64 { return int64(all-rows) * e })
}

// sends reports whether lane k passes its rows on to another lane. The last one returns its result to the leader.
func (o *Partition) sends(k int) bool { return k < len(o.Lanes)-1 }

// volumes returns what rank c sends in one micro-step for all entries that it evaluates.
func (o *Partition) volumes(c plan.Coord, m plan.Micro) (v [plan.AxisCount]volume) {
	if m.Whole && o.plan.Spread && o.plan.Pipe > 1 {
		return o.spreadVolumes(c)
	}
	b := o.batch[c.Data].Len()
	for _, i := range o.entries[c.CFG] {
		rows, sound := o.rows(m, i), o.alike(i)
		for _, k := range o.lanesOf(c) {
			for _, n := range o.kinds[k] {
				var one [plan.AxisCount]volume
				o.block(&one, c, n.block, rows, b, sound)
				for a := range v {
					v[a].add(int64(n.count)*one[a].calls, int64(n.count)*one[a].values)
					v[a].stats += int64(n.count) * one[a].stats
					v[a].floats += int64(n.count) * one[a].floats
				}
			}
			if o.sends(k) {
				v[plan.AxisPipe].add(1, int64(b*o.plan.Kept(rows[c.SequenceRank(o.plan)], c.Tensor).Len()*o.Spec.Width))
				if sound > 0 {
					v[plan.AxisPipe].add(1, int64(b*sound*o.Spec.Sound.Width))
				}
			}
		}
	}
	return v
}

// spreadVolumes returns what rank c sends in a spread evaluation.
func (o *Partition) spreadVolumes(c plan.Coord) [plan.AxisCount]volume {
	v := o.spreadOut.volumes(o.spreadCoord(c), plan.Micro{Whole: true})
	v[plan.AxisSpread], v[plan.AxisRing] = v[plan.AxisRing], volume{}
	return v
}

// prefaceVolumes returns what rank c sends while prefaces go through the blocks, before the first evaluation. All ranks
// of a sequence compute them whole, in spread plans all stages.
func (o *Partition) prefaceVolumes(c plan.Coord) (v [plan.AxisCount]volume) {
	t, spread := int64(o.plan.Tensor), o.plan.Spread && o.plan.Pipe > 1
	for _, i := range o.entries[c.CFG] {
		values := int64(o.each * o.preface(i) * o.Spec.Width)
		blocks := []dit.Range{{End: len(o.Spec.Blocks)}}
		if !spread {
			blocks = nil
			for _, k := range o.lanesOf(c) {
				blocks = append(blocks, o.Lanes[k])
				if o.sends(k) && values > 0 {
					v[plan.AxisPipe].add(1, values)
				}
			}
		}
		for _, r := range blocks {
			for n := r.Start; n < r.End && t > 1; n++ {
				for _, stats := range o.preparing(c, n, i) {
					v[plan.AxisTensor].statistics(int64(stats), t)
				}
				if values == 0 {
					continue
				}
				for range o.recorded(c, n, false, true).sums {
					v[plan.AxisTensor].add(1, 2*(t-1)*values/t)
				}
			}
		}
	}
	return v
}

// TrafficByRank returns what every rank of a plan sends during a workload, as the executor counts it, by rank and axis
// (plan.Axis); on AxisStream it is what they read from host memory. weightBytes is the size of a weight, valueBytes
// that of an activation (4 for f32). Bytes of activations are exact, those of weights leave out the padding of packed
// matrices, and on AxisStream divide heads evenly over a tensor group.
func TrafficByRank(w Workload, p plan.Plan, weightBytes float64, valueBytes int) [][]Traffic {
	o := NewPartition(w, p)
	out := make([][]Traffic, p.Ranks())
	for r := range out {
		out[r] = make([]Traffic, plan.AxisCount)
		for a, v := range o.prefaceVolumes(o.mesh.At(r)) {
			out[r][a] = Traffic{Calls: v.calls, Bytes: v.bytes(valueBytes)}
		}
		o.bySize(o.micros(), func(m plan.Micro, n int) {
			for a, v := range o.volumes(o.mesh.At(r), m) {
				out[r][a].Calls += int64(n) * v.calls
				out[r][a].Bytes += int64(n) * v.bytes(valueBytes)
			}
		})
		weights := func(v volume) Traffic { return Traffic{v.calls, int64(float64(v.values) * weightBytes)} }
		read, sent := o.broughtVolumes(o.mesh.At(r))
		out[r][plan.AxisStream], out[r][plan.AxisShard] = weights(read), weights(sent)
	}
	return out
}
