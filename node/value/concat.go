package value

import (
	"math"

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
	if m.Traits.MaskFirst > 0 {
		return m.beside(c, branch, l, noise)
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
	switch m.Spec.Concat {
	case want:
		return out, nil
	case want + 1:
		return m.masked(c, branch, l, noise, out)
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

// masked builds the channels that networks for inpainting with one channel of a mask read (ComfyUI
// model_base.BaseModel, concat_cond): the mask of the entry or of the run, of zeros and ones, then what is kept of the
// picture: image, the entry's second latent, or else the run's. Without a mask everything is filled in, and the picture
// is blank.
func (m *Model) masked(c *Cond, branch string, l request.Latent, noise *picture.Mask, image dit.Reference,
) (dit.Reference, error) {
	n, want, mask := l.Y*l.X, m.Format.Channels, c.ConcatMask
	if mask == nil {
		mask = noise
	}
	switch {
	case mask == nil:
		for i := range image.Data {
			image.Data[i] = blankPicture[i/n%len(blankPicture)]
		}
		mask = &picture.Mask{B: 1, Y: 1, X: 1, Data: []float32{1}}
	case c.ConcatImage.B == 0 && l.B != 1:
		return image, fault.Bad(branch, "the %s model reads a masked picture, and the latent holds %d: want one, or an "+
			"entry with concat_latent_image (InpaintModelConditioning)", m.Spec.Family, l.B)
	case c.ConcatImage.B == 0:
		if copy(image.Data, l.Data[:want*n]); !allZero(l.Data) {
			m.Format.ToModel(image.Data, n)
		}
	}
	if mask.B != 1 {
		return image, fault.Bad(branch, "concat_mask has a batch of %d: want one mask", mask.B)
	}
	fit := resample.Image{Data: mask.Data, B: 1, C: 1, Y: mask.Y, X: mask.X}
	if c.ConcatMask == nil && noise != nil { // as the run reads it
		at := fitMask(mask, l.Y, l.X, 1)
		fit = resample.Image{Data: at.Data, B: 1, C: 1, Y: l.Y, X: l.X}
	}
	if fit.Y != l.Y || fit.X != l.X {
		var err error
		if fit, err = resample.Upscale(fit, l.X, l.Y, resample.Bilinear, resample.CropCenter); err != nil {
			return image, fault.Bad(branch, "concat_mask: %v", err)
		}
	}
	rounded := make([]float32, n, n+len(image.Data))
	for i, v := range fit.Data[:n] {
		rounded[i] = float32(math.RoundToEven(float64(v)))
	}
	image.Data = append(rounded, image.Data...)
	return image, nil
}

// blankPicture is a grey picture in latent space, by channel (ComfyUI blank_inpaint_image_like).
var blankPicture = []float32{0.8223, -0.6876, 0.6364, 0.1380}

// beside builds the channels beside the latent of networks that read a video, behind the channels of a mask in which 1
// means that it is given (ComfyUI model_base.WAN21.concat_cond). Without a video all of them are zeros.
func (m *Model) beside(c *Cond, branch string, l request.Latent, noise *picture.Mask) (dit.Reference, error) {
	video, given, first, frames := c.ConcatImage, c.ConcatGiven, m.Traits.MaskFirst, max(1, l.T)
	plane := l.Y * l.X
	out := dit.Reference{Y: l.Y, X: l.X, Data: make([]float32, m.Spec.Concat*plane)}
	if video.B > 0 {
		if want := m.Spec.Concat - first; video.B != 1 || video.C != want || max(1, video.T) != frames {
			return out, fault.Family(branch, "concat_latent_image has %d videos of %d channels and %d latent frames, the %s "+
				"model takes one of %d and %d: encode it with the VAE of that family, in the length of the latent", video.B,
				video.C, max(1, video.T), m.Spec.Family, want, frames)
		}
		data, err := fitted(branch, "concat_latent_image", video, l)
		if err != nil {
			return out, err
		}
		m.Format.ToModel(data, plane)
		copy(out.Data[first*plane:], data)
	}
	if given.B == 0 && noise != nil {
		one := l
		one.B = 1
		given = m.frameMask(noise, one)
	}
	if given.B == 0 {
		return out, nil
	}
	if given.B != 1 || given.C != 1 && given.C != first || max(1, given.T) > frames {
		return out, fault.Bad(branch, "concat_mask is [%d, %d, %d frames, ...]: want [1, 1 or %d, at most %d frames, ...]",
			given.B, given.C, max(1, given.T), first, frames)
	}
	data, err := fitted(branch, "concat_mask", given, l)
	if err != nil {
		return out, err
	}
	has := len(data) / given.C // values of the frames that the mask has
	for ch := range first {
		for i, v := range data[ch%given.C*has:][:has] {
			out.Data[ch*plane+i] = 1 - v
		}
	}
	return out, nil
}

// fitted returns the values of v with every frame scaled to the size of l's frames.
func fitted(branch, what string, v, l request.Latent) ([]float32, error) {
	t, y := max(1, v.T), l.Y/max(1, l.T)
	r, err := resample.Upscale(resample.Image{Data: v.Data, B: 1, C: v.C * t, Y: v.Y / t, X: v.X}, l.X, y,
		resample.Bilinear, resample.CropCenter)
	if err != nil {
		return nil, fault.Bad(branch, "%s: %v", what, err)
	}
	return r.Data, nil
}
