package sd3

import (
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/weights"
)

// Open describes a file of the family.
func Open(set *weights.Set, meta map[string]string) (*family.Diffusion, error) {
	c, err := Detect(set, meta)
	if err != nil {
		return nil, err
	}
	d, err := family.Describe("sd3", set, c, Load)
	if err != nil {
		return nil, err
	}
	d.Latent, d.Sampling = latent.SD3(), family.Sampling{Line: family.FlowLine, Shift: 3, Multiplier: 1000}
	d.NoStepCache = true
	return d, nil
}
