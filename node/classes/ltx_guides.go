package classes

import (
	"cmp"
	"slices"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// ltxAddGuide appends encoded pictures to a latent, as frames that are no part of the video, and says on both sides
// which of its pictures they stand for. A video that begins later than the first picture is encoded with its first
// picture twice, whose frame of the latent is left out: each frame then stands for eight pictures.
func ltxAddGuide(c *graph.Call) ([]any, error) {
	every := 1
	if says, ok := c.Raw("iclora_parameters").(value.Guiding); ok {
		every = max(1, says.Downscale)
	}
	l, ae, im, at := c.Layers("latent"), c.VAE("vae"), c.Image("image").First(3), c.Whole("frame_idx")
	positive := c.Conditioning("positive")
	s, t := l.Samples, max(1, l.Samples.T)
	if err := ae.Takes(s.C, ae.Channels); err != nil || s.C != ltxChannels {
		return nil, fault.Family("vae", "%s makes latents of %d channels, latent has %d: want %d for both", ae.Name,
			ae.Channels, s.C, ltxChannels)
	}
	if at < 0 {
		at = max((t-keyframesOf(positive)-1)*ltxPictures+1+at, 0)
	}
	y, x, strength := s.Y/t, s.X, c.Decimal("strength")
	switch {
	case y%every != 0 || x%every != 0:
		return nil, fault.Bad("iclora_parameters", "the LoRA wants pictures with sides %d times smaller "+
			"(reference_downscale_factor), those of the latent's frames are %d x %d: want multiples", every, x, y)
	case every > 1 && strength > 1:
		return nil, fault.Bad("strength", "%v: want 0 to 1 with iclora_parameters of a LoRA that wants pictures with sides "+
			"%d times smaller, with more ComfyUI leaves the guide out", strength, every)
	}
	cut := func(n int) int { return (n-1)/ltxPictures*ltxPictures + 1 }
	first := at == 0 || cut(im.B) == 1 // its first frame stands for one picture
	if !first {
		im = &picture.Image{B: im.B + 1, Y: im.Y, X: im.X, C: im.C, Data: slices.Concat(im.Items(0, 1).Data, im.Data)}
	}
	im = im.Items(0, cut(im.B))
	encoded, err := encodedTo(c, ae, im, y/every, x/every)
	if err != nil {
		return nil, err
	}
	frames := max(1, encoded.T)
	if !first {
		encoded, frames = framesFrom(encoded, 1), frames-1
		if im.B > 2 {
			at = (at-1)/ltxPictures*ltxPictures + 1
		}
	}
	if (at+ltxPictures-1)/ltxPictures+frames > t {
		return nil, fault.Bad("frame_idx", "%d pictures from %d on go beyond the latent's %d frames", im.B, at, t)
	}
	guide := dit.Keyframes{Weight: float32(strength), Every: every}
	if c.Given("attention_mask") {
		if guide.Mask, err = guideMask(c.Mask("attention_mask"), frames, y/every, x/every); err != nil {
			return nil, err
		}
	}
	for i := range frames {
		from, to := i*ltxPictures, (i+1)*ltxPictures
		if first {
			from, to = max(0, from+1-ltxPictures), to+1-ltxPictures
		}
		guide.Spans = append(guide.Spans, [2]float32{float32(at + from), float32(at + to)})
	}
	out := l.With(joinedFrames(s, dilated(encoded, every), frames))
	mask, err := frameMask(l)
	if err != nil {
		return nil, err
	}
	part := max(0, 1-guide.Weight)
	if every == 1 {
		mask.Data = append(mask.Data, slices.Repeat([]float32{part}, frames*mask.Y*mask.X)...)
	} else if mask, err = expandedMask(mask, y, x); err != nil {
		return nil, err
	} else {
		for i := range frames * y * x {
			v := -1 - guide.Weight // pixels without tokens, as ComfyUI marks them
			if i/x%y%every == 0 && i%x%every == 0 {
				v = part
			}
			mask.Data = append(mask.Data, v)
		}
	}
	mask.B += frames
	out.NoiseMask = mask
	add := func(e *value.Cond) { e.Keyframes = append(slices.Clone(e.Keyframes), guide) }
	return []any{positive.Each(add), c.Conditioning("negative").Each(add), out}, nil
}

// dilated puts the pixels of a latent so far apart, with zeros between.
func dilated(l request.Latent, every int) request.Latent {
	out := l
	out.Y, out.X = l.Y*every, l.X*every
	out.Data = make([]float32, len(l.Data)*every*every)
	for i, v := range l.Data {
		out.Data[i/l.X*every*out.X+i%l.X*every] = v
	}
	return out
}

// expandedMask gives a mask with one value for each frame y x x of it.
func expandedMask(m *picture.Mask, y, x int) (*picture.Mask, error) {
	if m.Y == y && m.X == x {
		return m, nil
	}
	if m.Y != 1 || m.X != 1 {
		return nil, fault.Bad("latent", "has a mask of %d x %d: want one value for each frame, or one for each of its "+
			"%d x %d pixels", m.X, m.Y, x, y)
	}
	out := &picture.Mask{B: m.B, Y: y, X: x, Data: make([]float32, 0, m.B*y*x)}
	for _, v := range m.Data {
		out.Data = append(out.Data, slices.Repeat([]float32{v}, y*x)...)
	}
	return out, nil
}

// guideMask scales a mask to the t frames of a guide, of y x x pixels each, as ComfyUI's network does
// (comfy/ldm/lightricks/model.py): the first is that of the first picture, and each of the others the mean of so many
// pictures as there are for each behind it, or if there are less, the nearest. One picture is for all frames. Values
// below 0 hide as 0 does.
func guideMask(m *picture.Mask, t, y, x int) ([]float32, error) {
	im, err := resizedImage(m.Image(), x, y, resample.Area, resample.CropDisabled, "attention_mask")
	if err != nil {
		return nil, err
	}
	n, last := y*x, m.B-1
	out := make([]float32, 0, t*n)
	for i := range t {
		from, count := 0, 1
		if each := last / max(1, t-1); i > 0 && each > 0 {
			from, count = 1+(i-1)*each, each
		} else if i > 0 && last > 0 {
			from = 1 + int(float32(i-1)*(float32(last)/float32(t-1)))
		}
		for p := range n {
			sum := float32(0)
			for k := range count {
				sum += im.Data[(from+k)*n+p]
			}
			out = append(out, max(0, sum/float32(count)))
		}
	}
	return out, nil
}

// keyframesOf returns how many frames of a latent guide it, as the first entry that knows says.
func keyframesOf(list value.Conditioning) int {
	for i := range list {
		if n := list[i].KeyframesOf(); n > 0 {
			return n
		}
	}
	return 0
}

// encodedTo encodes pictures that are cut and scaled to a latent of y x x pixels.
func encodedTo(c *graph.Call, ae *value.VAE, im *picture.Image, y, x int) (request.Latent, error) {
	scale, err := scaleOf(c, ae)
	if err != nil {
		return request.Latent{}, err
	}
	if im, err = resizedImage(im, x*scale, y*scale, resample.Bilinear, resample.CropCenter, "image"); err != nil {
		return request.Latent{}, err
	}
	encoded, err := encodeImage(c, ae, im)
	if t := max(1, encoded.T); err == nil && (encoded.X != x || encoded.Y != t*y) {
		err = fault.Bad("image", "becomes latent frames of %d x %d, the latent has %d x %d", encoded.Y/t, encoded.X, y, x)
	}
	return encoded, err
}

// framesFrom returns the frames of a latent from some on; those before -from if it is below 0.
func framesFrom(l request.Latent, from int) request.Latent {
	n, lo, hi := l.Y*l.X, from*(l.Y/l.T)*l.X, l.Y*l.X
	if from < 0 {
		lo, hi = 0, n+lo
	}
	out := l
	out.T, out.Y, out.Data = l.T*(hi-lo)/n, (hi-lo)/l.X, make([]float32, 0, l.B*l.C*(hi-lo))
	for i := range l.B * l.C {
		out.Data = append(out.Data, l.Data[i*n+lo:i*n+hi]...)
	}
	return out
}

// joinedFrames returns every video of l with so many frames of another latent behind it.
func joinedFrames(l, more request.Latent, frames int) request.Latent {
	out, y := l, l.Y/max(1, l.T)
	out.T = max(1, l.T) + frames
	out.Y, out.Data = out.T*y, nil
	n, added := l.Y*l.X, frames*y*l.X
	for i := range l.B * l.C {
		out.Data = append(out.Data, l.Data[i*n:(i+1)*n]...)
		out.Data = append(out.Data, more.Data[i%l.C*added:][:added]...)
	}
	return out
}

// ltxCropGuides takes off a latent the frames that guide it, and off both sides what says so. Without guides it only
// gives the latent a mask, as ComfyUI does.
func ltxCropGuides(c *graph.Call) ([]any, error) {
	l, positive := c.Layers("latent"), c.Conditioning("positive")
	mask, err := frameMask(l)
	if err != nil {
		return nil, err
	}
	out, n := l.With(l.Samples), keyframesOf(positive)
	if n > 0 {
		if l.Samples.T <= n {
			return nil, fault.Bad("latent", "has %d frames, positive says that %d guide it: want the latent that they were "+
				"added to", max(1, l.Samples.T), n)
		}
		out.Samples = framesFrom(l.Samples, -n)
		mask.B -= n
		mask.Data = mask.Data[:mask.B*mask.Y*mask.X]
	}
	out.NoiseMask = mask
	none := func(e *value.Cond) { e.Keyframes = nil }
	return []any{positive.Each(none), c.Conditioning("negative").Each(none), out}, nil
}

// frameMask returns the mask of a latent with a part of its own for every frame; without one all may change.
func frameMask(l *value.Latent) (*picture.Mask, error) {
	t := max(1, l.Samples.T)
	mask := cmp.Or(l.NoiseMask, &picture.Mask{B: 1, Y: 1, X: 1, Data: []float32{1}})
	if mask.B != 1 && mask.B != t {
		return nil, fault.Bad("latent", "has a mask for %d frames, it has %d", mask.B, t)
	}
	return &picture.Mask{B: t, Y: mask.Y, X: mask.X, Data: slices.Repeat(mask.Data, t/mask.B)}, nil
}
