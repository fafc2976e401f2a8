package classes

import (
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/models/vae"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel"
)

// inpaintClasses are the rows that give a latent the mask of what may change.
func inpaintClasses() []graph.Class {
	outputs := []graph.Slot{
		{Name: "positive", Type: "CONDITIONING"}, {Name: "negative", Type: "CONDITIONING"}, {Name: "latent", Type: "LATENT"},
	}
	return []graph.Class{
		{
			Name: "SetLatentNoiseMask", Display: "Set Latent Noise Mask", Module: "nodes", Category: "model/latent",
			Inputs: []graph.Input{graph.Bare("samples", "LATENT"), graph.Bare("mask", "MASK")}, Outputs: graph.Slots("LATENT"),
			Run: func(c *graph.Call) ([]any, error) {
				l := graph.Arg[*value.Latent](c, "samples")
				if err := l.Single("samples"); err != nil {
					return nil, err
				}
				return []any{&value.Latent{Samples: l.Samples, NoiseMask: c.Mask("mask"), BatchIndex: l.BatchIndex}}, nil
			},
		},
		{
			Name: "VAEEncodeForInpaint", Display: "VAE Encode (for Inpainting)", Module: "nodes", Category: "model/latent",
			Heavy:       graph.StageVAE,
			Description: "Encodes pictures with grey where the mask is, and keeps the mask, grown a little, with the latent.",
			Inputs: []graph.Input{
				graph.Bare("pixels", "IMAGE"), graph.Bare("vae", "VAE"), graph.Bare("mask", "MASK"),
				graph.Int("grow_mask_by", "in pixels", 6, 0, 64, 1).AsLater(),
			},
			Outputs: graph.Slots("LATENT"), Run: encodeForInpaint,
		},
		{
			Name: "InpaintModelConditioning", Module: "nodes", Category: "model/conditioning", Heavy: graph.StageVAE,
			Inputs: []graph.Input{
				graph.Bare("positive", "CONDITIONING"), graph.Bare("negative", "CONDITIONING"), graph.Bare("vae", "VAE"),
				graph.Bare("pixels", "IMAGE"), graph.Bare("mask", "MASK"),
				graph.Bool("noise_mask", "only what is inside the mask changes", true).AsLater(),
			},
			Outputs: outputs, Run: inpaintConditioning,
		},
		{
			Name: "InstructPixToPixConditioning", Module: "comfy_extras.nodes_ip2p", NewStyle: true,
			Category: "model/conditioning/instructpix2pix", Heavy: graph.StageVAE,
			Inputs: []graph.Input{
				graph.Link("positive", "CONDITIONING", ""), graph.Link("negative", "CONDITIONING", ""),
				graph.Link("vae", "VAE", ""), graph.Link("pixels", "IMAGE", ""),
			},
			Outputs: outputs, Run: pixToPix,
		},
	}
}

// encodeForInpaint encodes the picture with grey inside the mask and keeps the grown mask.
func encodeForInpaint(c *graph.Call) ([]any, error) {
	im, v, grow := graph.Arg[*picture.Image](c, "pixels"), graph.Arg[*value.VAE](c, "vae"), c.Whole("grow_mask_by")
	mask, err := sizedMask(c.Mask("mask"), im.Y, im.X)
	if err != nil {
		return nil, err
	}
	scale, err := scaleOf(c, v)
	if err != nil {
		return nil, err
	}
	grey, noise, err := inpainted(im, mask, grow, scale)
	if err != nil {
		return nil, err
	}
	samples, err := encodeImage(c, v, grey)
	return []any{&value.Latent{Samples: samples, NoiseMask: noise}}, err
}

// inpainted returns pictures that are grey where the rounded mask is 1, and the rounded mask, cut to what an encoder of
// that scale covers and grown by a box of grow pixels.
func inpainted(im *picture.Image, mask *picture.Mask, grow, scale int) (*picture.Image, *picture.Mask, error) {
	whole := mask.Like(make([]float32, len(mask.Data)))
	for i, f := range mask.Data {
		whole.Data[i] = float32(math.RoundToEven(float64(f)))
	}
	grey, err := greyed(im, whole)
	return grey, whole.Centred(scale).Dilated(grow), err
}

// inpaintConditioning encodes the picture, keeps the mask, not rounded, with the latent, and gives both conditionings
// mask and masked picture, for networks that read them (FLUX Fill).
func inpaintConditioning(c *graph.Call) ([]any, error) {
	im, v := graph.Arg[*picture.Image](c, "pixels"), graph.Arg[*value.VAE](c, "vae")
	mask, err := sizedMask(c.Mask("mask"), im.Y, im.X)
	if err != nil {
		return nil, err
	}
	grey, _, err := inpainted(im, mask, 0, 8)
	if err != nil {
		return nil, err
	}
	masked, err := encodeImage(c, v, grey)
	if err != nil {
		return nil, err
	}
	samples, err := encodeImage(c, v, im)
	if err != nil {
		return nil, err
	}
	out := &value.Latent{Samples: samples}
	mask = mask.Centred(8)
	if c.Flag("noise_mask") {
		out.NoiseMask = mask
	}
	return beside(c, masked, mask, out), nil
}

// pixToPix gives both conditionings the encoded picture, for networks that read one beside the noise (FLUX Canny and
// Depth), and an empty latent of its size.
func pixToPix(c *graph.Call) ([]any, error) {
	l, err := encodeImage(c, graph.Arg[*value.VAE](c, "vae"), graph.Arg[*picture.Image](c, "pixels"))
	return beside(c, l, nil, &value.Latent{Samples: parallel.NewLatent(l.B, l.C, l.Y, l.X)}), err
}

// beside gives both conditionings a picture and a mask to read, and a latent.
func beside(c *graph.Call, l parallel.Latent, mask *picture.Mask, latent *value.Latent) (out []any) {
	for _, side := range []string{"positive", "negative"} {
		out = append(out, graph.Arg[value.Conditioning](c, side).Each(func(e *value.Cond) {
			e.ConcatImage = l
			if mask != nil {
				e.ConcatMask = mask
			}
		}))
	}
	return append(out, latent)
}

// sizedMask returns a copy scaled to y rows and x columns (bilinear).
func sizedMask(m *picture.Mask, y, x int) (*picture.Mask, error) {
	if err := checkSize("mask", m.B, y, x); err != nil {
		return nil, err
	}
	out, err := resample.Upscale(resample.Image{Data: m.Data, B: m.B, C: 1, Y: m.Y, X: m.X}, x, y, resample.Bilinear,
		resample.CropDisabled)
	if err != nil {
		return nil, fault.Bad("mask", "%v", err)
	}
	return &picture.Mask{B: m.B, Y: y, X: x, Data: out.Data}, nil
}

// greyed returns a copy whose colours are (v - 0.5)*(1 - mask) + 0.5. One mask goes with all pictures.
func greyed(im *picture.Image, m *picture.Mask) (*picture.Image, error) {
	if m.B != 1 && m.B != im.B {
		return nil, fault.Bad("mask", "has a batch of %d, pixels one of %d: want 1 or %d", m.B, im.B, im.B)
	}
	out := *im
	out.Data = slices.Clone(im.Data)
	for i := range im.B * im.Y * im.X {
		keep := 1 - m.Data[i%len(m.Data)]
		for k := range 3 {
			v := &out.Data[i*im.C+k]
			*v = float32((*v-0.5)*keep) + 0.5
		}
	}
	return &out, nil
}

// scaleOf returns how many pixels one latent value covers.
func scaleOf(c *graph.Call, v *value.VAE) (scale int, err error) {
	if v.Key == value.PixelSpace {
		return 1, nil
	}
	err = v.With(c.Use(), func(cfg vae.Config, _ engine.DType) (int, error) { scale = cfg.Scale(); return 0, nil },
		func(*vae.VAE, vae.Env) error { return nil })
	return scale, err
}
