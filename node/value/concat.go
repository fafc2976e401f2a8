package value

import (
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/parallel/request"
)

// concat builds the extra channels that a network with more input channels than a latent reads beside it (ComfyUI
// model_base.Flux.concat_cond): the entry's second latent, resized to l and in model space, and, if the network has
// channels left for it, a mask with the 8 x 8 pixels of each latent position as channels. noise is the mask of l.
func (m *Model) concat(c *Cond, branch string, l request.Latent, noise *picture.Mask) (dit.Reference, error) {
	if m.Spec.Concat == 0 {
		return dit.Reference{}, nil
	}
	out, image, want := dit.Reference{Y: l.Y, X: l.X}, c.ConcatImage, m.Format.Channels
	if image.B == 0 {
		image = request.NewLatent(1, want, l.Y, l.X)
	}
	if image.B != 1 || image.C != want {
		return out, fault.Family(branch, "concat_latent_image has %d pictures of %d channels, the %s model takes one of "+
			"%d: encode one picture with the VAE of that family", image.B, image.C, m.Spec.Family, want)
	}
	scaled := func(what string, v []float32, channels, y, x, toY, toX int) ([]float32, error) {
		r, err := resample.Upscale(resample.Image{Data: v, B: 1, C: channels, Y: y, X: x}, toX, toY, resample.Bilinear,
			resample.CropCenter)
		if err != nil {
			return nil, fault.Bad(branch, "%s: %v", what, err)
		}
		return r.Data, nil
	}
	var err error
	if out.Data, err = scaled("concat_latent_image", image.Data, want, image.Y, image.X, l.Y, l.X); err != nil {
		return out, err
	}
	m.Format.ToModel(out.Data, l.Y*l.X)
	if m.Spec.Concat == want {
		return out, nil
	}
	mask := c.ConcatMask
	switch {
	case mask == nil && noise == nil:
		mask = &picture.Mask{B: 1, Y: 1, X: 1, Data: []float32{1}}
	case mask == nil:
		fit := fitMask(noise, l.Y, l.X, noise.B)
		mask = &picture.Mask{B: fit.B, Y: fit.Y, X: fit.X, Data: fit.Data}
	}
	if mask.B != 1 {
		return out, fault.Bad(branch, "concat_mask has a batch of %d: want one mask", mask.B)
	}
	pixels, err := scaled("concat_mask", mask.Data, 1, mask.Y, mask.X, 8*l.Y, 8*l.X)
	for ch := range dit.MaskChannels {
		for i := 0; err == nil && i < l.Y*l.X; i++ {
			out.Data = append(out.Data, pixels[(i/l.X*8+ch/8)*8*l.X+i%l.X*8+ch%8])
		}
	}
	return out, err
}
