package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Cuts of stages that own their weights depend on model and device alone, so that another size of picture finds its
// weights in place: they are made for one of referenceSide tokens a side with referenceText tokens of text.

// referenceSide is the tokens a side of a picture of 1024 pixels in the models here, referenceText the longest text
// that FLUX was published with.
const referenceSide, referenceText = 64, 512

// OwnLanes cuts the blocks of a model over stages that own their weights, by the rates of a device or by parameters;
// nil for plans without such stages.
func OwnLanes(spec *dit.Spec, p plan.Plan, device Device) []plan.Lane {
	if !p.Owns() {
		return nil
	}
	if p.ByWeights {
		return p.LightestLanes(spec)
	}
	one := plan.OneRank()
	one.Pipe, one.Patches = p.Pipe, p.Pipe
	side := referenceSide * spec.PatchSize
	return NewPartition(Workload{
		Spec: spec, Y: side, X: side, Batch: 1, Text: []int{referenceText}, Evaluations: 1,
		Device: device,
	}, one).Lanes
}
