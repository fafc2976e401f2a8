package hunyuan

import (
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/weights"
)

// Open describes a file of the family.
func Open(set *weights.Set, meta map[string]string) (*family.Diffusion, error) {
	c, err := Detect(set, meta)
	if err != nil {
		return nil, err
	}
	d, err := family.Describe("hunyuandit", set, c, Load)
	if err != nil {
		return nil, err
	}
	d.Latent = latent.SDXL()
	d.Sampling = family.Sampling{
		Line: family.DiscreteLine, Prediction: sampling.V, Betas: sampling.ScaledLinear, BetaStart: 0.00085, BetaEnd: 0.018,
	}
	if c.SizeCond && c.StyleCond { // versions 1.0 and 1.1
		d.Sampling.BetaEnd = 0.03
	}
	d.Traits = family.Traits{SizeCond: sizeCond, NoStepCache: true}
	return d, nil
}

// sizeCond is what versions 1.0 and 1.1 are told of the size: rows and columns of original and target, and no crop.
func sizeCond(height, width int) []float32 {
	h, w := float32(height), float32(width)
	return []float32{h, w, h, w, 0, 0}
}
