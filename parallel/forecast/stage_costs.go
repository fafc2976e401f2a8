package forecast

import (
	"math"

	"patchbay/models/dit"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// blockSeconds returns the costs of all blocks, and of embedding and head, on the first rank of a stage by the rates of
// the workload's device: the time of the patches of one evaluation one after the other, for all entries of the rank,
// without exchanges. The simulator works with the same costs, so its predictions for stages are what they were cut by.
func (o *Partition) blockSeconds() (blocks []float64, ends [2]float64) {
	c := &costs{Partition: o, cluster: hardware.Cluster{Device: o.Device}}
	if o.Device == (hardware.Device{}) {
		c.cluster.Device = hardware.Device{GEMM: 1, Attention: 1, Traffic: math.Inf(1)} // multiply-adds alone, all alike
	}
	at, b := plan.Coord{}, o.batch[0].Len()
	patches := [microSizes]int{}
	for j := range o.Patches {
		patches[o.size(plan.Micro{Patch: j})]++
	}
	seconds := func(add func(l *load, rows []dit.Rows, entry int)) float64 {
		total := 0.0
		for size, n := range patches {
			if n == 0 {
				continue
			}
			l := load{on: &c.cluster.Device}
			for _, i := range o.entries[0] {
				add(&l, o.cut[size][i], i)
			}
			total += float64(n) * c.compute(l)
		}
		return total
	}
	for n := range o.Spec.Blocks {
		if o.like[n] < n { // blocks of one kind cost the same
			blocks = append(blocks, blocks[o.like[n]])
			continue
		}
		blocks = append(blocks, seconds(func(l *load, rows []dit.Rows, i int) { c.addBlock(l, at, n, rows, i, b) }))
	}
	for k := range ends {
		ends[k] = seconds(func(l *load, rows []dit.Rows, _ int) {
			embed, head := c.endFlops(at, rows, b)
			l.gemm += [2]float64{embed, head}[k]
		})
	}
	return blocks, ends
}
