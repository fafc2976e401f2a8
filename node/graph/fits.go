package graph

import (
	"slices"

	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/node/files"
	"patchbay/node/value"
	"patchbay/parallel/plan"
)

// planFits refuses, before the first node runs, a plan that no picture of the job's models can run: text encoders
// would be loaded in vain. What depends on the picture is checked when sampling starts. Unreadable files are left to
// their loaders.
func (x *execution) planFits() error {
	if x.job.Plan == "" {
		return nil
	}
	sampler := ""
	for _, id := range x.work.pending {
		if k := x.class(id); k.Phase == PhaseDenoise && sampler == "" {
			sampler = id
		}
	}
	if sampler == "" {
		return nil
	}
	p, err := plan.Parse(x.job.Plan)
	for _, id := range x.work.pending {
		for _, spec := range x.specs(id) {
			if err == nil && p.Choose == 0 {
				err = p.CheckModel(spec)
			}
		}
	}
	if err != nil {
		return x.fail(sampler, x.class(sampler), nil, err)
	}
	return nil
}

func (x *execution) class(id string) *Class { return x.run.cat.classes[x.job.Workflow.Class(id)] }

// specs returns the diffusion models that a node reads from files, or takes from nodes that are not run again.
func (x *execution) specs(id string) (out []*dit.Spec) {
	inputs := x.job.Workflow.inputs(id)
	for _, name := range inputs.Keys() {
		if l, linked := asLink(inputs.At(name)); linked {
			made, _ := x.local[l.id].output(l.slot)
			if m, ok := made.(*value.Model); ok {
				out = append(out, m.Spec)
			}
			continue
		}
		in := x.class(id).Input(name)
		if in == nil || !slices.Contains([]string{files.KindDiffusion, files.KindGGUF, files.KindCheckpoint}, in.Files) {
			continue
		}
		// the loader reports what is wrong with the file
		_ = x.run.roots.Header(in.Files, name, inputs.Text(name), false, func(h files.Header) error {
			d, err := models.OpenDiffusion(h.Weights.Set(), h.Weights.Metadata())
			if err == nil {
				out = append(out, &d.Spec)
			}
			return err
		})
	}
	return out
}
