package flux

import (
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/weights"
)

// Open describes a file of the family: the guided models with the time line of FLUX, schnell with a plain flow.
func Open(set *weights.Set, meta map[string]string) (*family.Diffusion, error) {
	c, err := Detect(set, meta)
	if err != nil {
		return nil, err
	}
	d, err := family.Describe("flux", set, c, Load)
	if err != nil {
		return nil, err
	}
	d.Latent, d.Sampling = latent.FLUX(), family.Sampling{Line: family.FluxLine, Shift: 1.15}
	d.Guidance = 3.5 // ComfyUI model_base.Flux.extra_conds
	if !c.Guidance { // schnell
		d.Sampling = family.Sampling{Line: family.FlowLine, Shift: 1, Multiplier: 1}
	}
	return d, nil
}

// OpenDiffusers describes a file with the names of diffusers.
func OpenDiffusers(set *weights.Set, meta map[string]string) (*family.Diffusion, error) {
	_, _, set = weights.Looks(set)
	set, meta, err := FromDiffusers(set, meta)
	if err != nil {
		return nil, err
	}
	return Open(set, meta)
}
