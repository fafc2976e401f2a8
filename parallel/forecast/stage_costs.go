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
	w, lanes := *o, []dit.Range{{}}
	for n := range o.Spec.Blocks {
		lanes = append(lanes, dit.Range{Start: n, End: n + 1})
	}
	w.setLanes(append(lanes, dit.Range{})) // embedding, blocks, head
	c := &costs{Partition: &w, cluster: hardware.Cluster{Device: o.Device}}
	if o.Device == (hardware.Device{}) {
		c.cluster.Device = hardware.Device{GEMM: 1, Attention: 1, Traffic: math.Inf(1)} // multiply-adds alone, all alike
	}
	var patches []plan.Micro
	for j := range o.Patches {
		patches = append(patches, plan.Micro{Patch: j})
	}
	seconds := func(lane int) (sum float64) {
		o.bySize(patches, func(m plan.Micro, n int) { sum += float64(n) * c.compute(c.laneLoad(plan.Coord{}, lane, m)) })
		return sum
	}
	for n, first := range o.like {
		if first < n { // blocks of one kind cost the same
			blocks = append(blocks, blocks[first])
			continue
		}
		blocks = append(blocks, seconds(1+n))
	}
	return blocks, [2]float64{seconds(0), seconds(1 + len(blocks))}
}
