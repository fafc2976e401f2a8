package pixart

import (
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/weights"
)

// Open describes a file of the family: Sigma, or Alpha where the network is told sizes.
func Open(set *weights.Set, meta map[string]string) (*family.Diffusion, error) {
	c, err := Detect(set, meta)
	if err != nil {
		return nil, err
	}
	d, err := family.Describe("pixart_sigma", set, c, Load)
	if err != nil {
		return nil, err
	}
	d.Latent = latent.SDXL()
	if c.MicroSize {
		d.Variant, d.Latent = "pixart_alpha", latent.SD1()
	}
	d.Sampling = family.Sampling{
		Line: family.DiscreteLine, Prediction: sampling.Eps, Betas: sampling.Linear, BetaStart: 0.0001, BetaEnd: 0.02,
	}
	d.Traits = family.Traits{SizeCond: sizeCond, TextMask: true, NoStepCache: true}
	return d, nil
}

// sizeCond is what Alpha is told of the size: rows, columns and their ratio (ComfyUI model_base.PixArt.extra_conds).
func sizeCond(height, width int) []float32 {
	return []float32{float32(height), float32(width), float32(float64(height) / float64(width))}
}
