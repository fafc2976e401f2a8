package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// spread returns the partition of spread evaluations: the ranks are the same, but stages count as places of the ring.
func (o *Partition) spread() *Partition {
	w := *o
	w.plan.Ring, w.plan.Pipe, w.plan.Patches, w.stores = o.plan.Pipe*o.plan.Ring, 1, 1, true
	w.mesh = plan.Mesh{Plan: w.plan}
	w.setLanes([]dit.Range{{End: len(o.Spec.Blocks)}})
	w.cutRows()
	return &w
}

// spreadCoord returns the coordinates of a rank in the partition of spread evaluations.
func (o *Partition) spreadCoord(c plan.Coord) plan.Coord {
	c.Ring, c.Pipe = c.Pipe*o.plan.Ring+c.Ring, 0
	return c
}

// spreadVolumes returns what rank c sends in a spread evaluation.
func (o *Partition) spreadVolumes(c plan.Coord) [plan.AxisCount]volume {
	v := o.spreadOut.volumes(o.spreadCoord(c), plan.Micro{Whole: true})
	v[plan.AxisSpread], v[plan.AxisRing] = v[plan.AxisRing], volume{}
	return v
}
