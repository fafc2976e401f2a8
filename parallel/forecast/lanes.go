package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// Stages that own their weights are cut by model and device alone, so that a request for another image size finds its
// weights in place: the cut is made for an image of referenceSide tokens a side with referenceText tokens of text.

// referenceSide is the tokens per side of an image of 1024 pixels in the models here, referenceText the longest text
// that FLUX was published with.
const referenceSide, referenceText = 64, 512

// OwnLanes cuts the blocks of a model over stages that own their weights, by the rates of a device. It returns nil for
// plans without such stages.
func OwnLanes(spec *dit.Spec, p plan.Plan, device hardware.Device) []dit.Range {
	if !p.Owns() {
		return nil
	}
	one := plan.OneRank()
	one.Pipe, one.Patches, one.Speeds = p.Pipe, p.Pipe, plan.SpeedsOf(p.StageSpeeds())
	return NewPartition(Reference(spec, device), one).Lanes
}

// Reference returns a workload that depends on model and device alone.
func Reference(spec *dit.Spec, device hardware.Device) Workload {
	w := square(spec, referenceSide)
	w.Device = device
	return w
}

// square returns one evaluation of a picture of that many tokens a side with referenceText.
func square(spec *dit.Spec, side int) Workload {
	return Workload{
		Spec: spec, Y: side * spec.PatchSize, X: side * spec.PatchSize, Batch: 1, Text: []int{referenceText}, Evaluations: 1,
	}
}

// speeds returns the speed of each rank's device, in evaluations of a model per second.
func speeds(f hardware.Cluster, spec *dit.Spec) []float64 {
	out := make([]float64, f.Ranks())
	for r := range out {
		if r > 0 && *f.On(r) == *f.On(r - 1) {
			out[r] = out[r-1]
			continue
		}
		alone := hardware.Cluster{Device: *f.On(r), Link: f.Link, Hosts: 1, PerHost: 1}
		s, _ := newCosts(NewPartition(Reference(spec, alone.Device), plan.OneRank()), alone).laneSeconds(0, 0, 0,
			plan.Micro{Whole: true})
		out[r] = 1 / s
	}
	return out
}

// Share returns p with the speeds of the devices of its ranks for the model, if these differ and p has no speeds.
func Share(f hardware.Cluster, spec *dit.Spec, p plan.Plan) plan.Plan {
	if p.Ranks() <= len(f.Mixed) && p.Choose == 0 && p.Speeds == (plan.Speeds{}) {
		f.PerHost = p.Ranks()
		p.Speeds = plan.SpeedsOf(speeds(f, spec))
	}
	return p
}
