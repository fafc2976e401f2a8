package value

import (
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/sampling"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/parallel/request"
)

// Lowering holds the inputs that every sampling node boils down to.
type Lowering struct {
	Guider
	Noise
	Sampler Sampler
	Sigmas  []float32 // empty: the latent stays as it is
	Latent  *Latent   // in the VAE's space; its batch index and mask are used
	Hint    HintFunc  // encodes hints of control nets; nil: none are supported
}

// Lower builds the sampling request: latent in model space, noise for the whole batch, mask at latent size, entries
// with their sigma ranges.
func Lower(r Lowering) (*request.Request, error) {
	m := r.Model
	if err := m.heard(r.Latent, r.Branches); err != nil {
		return nil, err
	}
	start, err := m.widen(r.Latent)
	if err == nil {
		err = m.layered(start, r.Latent.NoiseMask, r.Branches)
	}
	if err != nil {
		return nil, err
	}
	req := &request.Request{
		Model: m.Request(), Sampling: m.Sampling, Sampler: r.Sampler.Name, Options: r.Sampler.Options, Sigmas: r.Sigmas,
		Latent: start, Seed: r.Seed, Guider: r.Rule,
	}
	req.Cache, req.Guider.Norm, req.Guider.Rescale = m.Cache, m.Norm, m.Rescale
	if start.Sound.Len() == 0 {
		req.Guider.SoundCFG = nil
	}
	if m.Differential != nil {
		req.Differential, req.DifferentialStrength = true, *m.Differential
	}
	if len(r.Sigmas) == 0 {
		return req, nil
	}
	if !allZero(start.Data) { // an empty latent stays zero rather than being shifted
		req.Latent.Data = slices.Clone(start.Data)
		m.converted(req.Latent, m.Format.ToModel, func(scale float32) float32 { return scale })
	}
	if !r.None {
		if req.Noise, req.NoiseDraws, err = noiseOf(r.Seed, start, r.Latent.BatchIndex); err != nil {
			return nil, err
		}
	}
	if mask := r.Latent.NoiseMask; mask != nil {
		req.Mask, req.CleanMask = m.frameMask(mask, start), m.Traits.FrameTimes
		if sound := r.Latent.SoundMask; sound != nil && start.Sound.Len() > 0 {
			req.Mask = request.Join(req.Mask, fitMask(sound, start.Sound.Y, start.Sound.X, start.B))
		}
	}
	hint := once(r.Hint)
	for _, b := range r.Branches {
		branch, err := m.branch(b, start, r.Latent, hint, r.Seed)
		if err != nil {
			return nil, err
		}
		req.Branches = append(req.Branches, branch)
	}
	if req.Guider.Identity = m.Identity; len(m.Identity) > 0 && len(req.Branches) > 0 {
		without := request.Branch{Name: req.Branches[0].Name, Entries: slices.Clone(req.Branches[0].Entries)}
		for i := range without.Entries {
			without.Entries[i].SoundReference = dit.Array{}
		}
		req.Branches = append(req.Branches, without)
	}
	return req, nil
}

// converted changes a latent in place between VAE space and model space. factor returns that of the sound from what
// samplers carry it times.
func (m *Model) converted(l request.Latent, video func(v []float32, plane int), factor func(scale float32) float32) {
	by, n := factor(m.Sampling.SoundScale()), l.C*l.Y*l.X
	for item := range slices.Chunk(l.Data, l.Item()) {
		video(item[:n], l.Y*l.X)
		for i := range item[n:] {
			item[n+i] *= by
		}
	}
}

// FromModel converts a latent from model space to VAE space in place.
func (m *Model) FromModel(l request.Latent) {
	m.converted(l, m.Format.FromModel, func(scale float32) float32 { return 1 / scale })
}

// noiseOf returns the noise of a latent and the sizes of its draws: that of the videos, and then from the same
// generator that of their sounds.
func noiseOf(seed uint64, l request.Latent, index []int) (noise request.Latent, draws []int, err error) {
	if index != nil && len(index) != l.B {
		return noise, nil, fault.Bad("latent_image", "batch_index has %d entries, the batch %d", len(index), l.B)
	}
	video, sound := l.Parts()
	g := sampling.NewGenerator(seed)
	for _, part := range []*request.Latent{&video, &sound} {
		if part.B == 0 {
			continue
		}
		if part.Data, err = g.Batch(part.B, part.Item(), index); err != nil {
			return noise, nil, fault.Bad("latent_image", "%v", err)
		}
		draws = append(draws, noiseDraws(index, part.B, part.Item())...)
	}
	return request.Join(video, sound), draws, nil
}

// noiseDraws returns the sizes of the draws of Generator.Batch: one for the batch, or with an index one per item up to
// the largest index.
func noiseDraws(index []int, batch, item int) []int {
	if index == nil {
		return []int{batch * item}
	}
	return slices.Repeat([]int{item}, slices.Max(index)+1)
}

// widen gives an empty latent the model's channels, and rescales it to cover the picture it was made for. Other latents
// must already have the model's channels.
func (m *Model) widen(latent *Latent) (request.Latent, error) {
	l, want, pixels := latent.Samples, m.Format.Channels, m.Format.Pixels()
	resized := latent.Scale != 0 && latent.Scale != pixels
	if l.C == want && !resized {
		return l, nil
	}
	empty := allZero(l.Data)
	switch {
	case !empty && l.C != want:
		return l, fault.Family("latent_image", "has %d channels, the %s model takes %d: encode it with the VAE of that "+
			"family", l.C, m.Spec.Family, want)
	case !empty:
		return l, nil
	}
	frames := max(1, l.T)
	y, x := l.Y/frames, l.X
	if resized { // round half to even, as Python does
		side := func(n int) int { return int(math.RoundToEven(float64(n) * float64(latent.Scale) / float64(pixels))) }
		y, x = max(1, side(y)), max(1, side(x))
	}
	out := request.NewLatent(l.B, want, frames*y, x)
	out.T = l.T
	return out, nil
}

func allZero(v []float32) bool {
	return !slices.ContainsFunc(v, func(x float32) bool { return x != 0 })
}

// branch lowers one conditioning list for a run with a seed that starts from l. The masks are those of latent.
func (m *Model) branch(b GuiderBranch, l request.Latent, latent *Latent, hint HintFunc, seed uint64,
) (request.Branch, error) {
	out, err := request.Branch{Name: b.Name}, error(nil)
	noise, sound := latent.NoiseMask, latent.SoundMask
	for i := range b.Conditioning {
		c := &b.Conditioning[i]
		if want := m.Spec.TextColumns(&c.Entry); c.Context.Cols != want {
			return out, fault.Family(b.Name, "the text states have %d channels, the %s model takes %d: load the text encoders "+
				"of that family", c.Context.Cols, m.Spec.Family, want)
		}
		e := request.Entry{
			Entry: c.Entry, Strength: 1, MaskStrength: 1, Area: c.area(l), Ranged: c.Ranged,
		}
		if e.Context, e.Prefix = m.filled(c.Context), m.Prefix; !m.Spec.Preface {
			e.Slots = nil
		}
		if e.Size == nil {
			e.Size = m.sizeCond(c, b.Name, l)
		}
		switch {
		case !m.Spec.TakesGuidance || c.NoGuidance:
			e.Guidance = nil
		case c.Guidance == nil:
			e.Guidance = &m.Traits.Guidance
		}
		if e.References, err = m.references(c, b.Name); err == nil && m.Traits.Guides > 0 {
			e.References, err = m.guides(c, b.Name, l, seed)
		}
		if err != nil {
			return out, err
		}
		if e.Control, err = m.controls(c, b.Name, l, hint); err != nil {
			return out, err
		}
		if e.Concat, err = m.concat(c, b.Name, l, noise); err != nil {
			return out, err
		}
		if c.HasStrength {
			e.Strength = c.Strength
		}
		if c.Ranged {
			e.SigmaStart, e.SigmaEnd = float32(m.Sampling.PercentToSigma(c.Start)), float32(m.Sampling.PercentToSigma(c.End))
		}
		if c.Mask != nil {
			e.Mask = fitMask(c.Mask, l.Y, l.X, min(c.Mask.B, l.B))
			e.MaskStrength, e.MaskBounds = c.MaskStrength, c.MaskBounds
		}
		if e.Vision, err = m.vision(c, b.Name); err != nil {
			return out, err
		}
		if m.Spec.FrameRate == 0 {
			e.FrameRate = 0 // others ignore it, as in ComfyUI
		}
		if m.Spec.Sound.Width == 0 {
			e.SoundReference = dit.Array{}
		}
		if !m.Spec.Keyframes {
			e.Keyframes = nil
		}
		if noise != nil && m.Traits.FrameTimes {
			mask := spread(m.frameMask(noise, l), e.Keyframes)
			e.Frames = meansOfFrames(mask)
			if m.Traits.EvenFrames && !even(mask, e.Frames) {
				return out, fault.Bad("latent_image", "has a mask that differs within a frame: %s models take masks of whole "+
					"frames", m.Spec.Family)
			}
			if sound != nil && l.Sound.Len() > 0 {
				e.SoundRows = partsOfRows(fitMask(sound, l.Sound.Y, l.Sound.X, 1))
			}
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// vision returns the states of pictures that the model's blocks attend to. Models without such layers ignore them.
func (m *Model) vision(c *Cond, branch string) (dit.Array, error) {
	if m.Spec.VisionDim == 0 {
		return dit.Array{}, nil
	}
	if v := c.Vision; v.Rows > 0 && v.Cols != m.Spec.VisionDim {
		return dit.Array{}, fault.Family(branch, "clip_vision_output has states of %d values, the %s model reads %d: use "+
			"the picture encoder that it was made for (clip_vision_h)", v.Cols, m.Spec.Family, m.Spec.VisionDim)
	}
	return c.Vision, nil
}

// spread returns a mask in which each token of keyframes has what it stands for (dit.Keyframes.Every).
func spread(mask request.Latent, list []dit.Keyframes) request.Latent {
	y, x := mask.Y/max(1, mask.T), mask.X
	at := mask.T
	for _, k := range list {
		at -= len(k.Spans)
	}
	if at < 0 {
		return mask // frames that are not there are refused with the request
	}
	for _, k := range list {
		for range k.Spans {
			frame := mask.Data[at*y*x:][:y*x]
			for i := range frame {
				by := max(1, k.Every)
				frame[i] = frame[i/x/by*by*x+i%x/by*by]
			}
			at++
		}
	}
	return mask
}

// even reports whether the values of a mask are those of its frames.
func even(mask request.Latent, frames []float32) bool {
	n := mask.Y * mask.X / len(frames)
	for i, v := range mask.Data {
		if !(math.Abs(float64(v-frames[i/n%len(frames)])) <= 1e-6) {
			return false
		}
	}
	return true
}

// partsOfRows returns the first column of a mask; nil: it is 1 everywhere.
func partsOfRows(mask request.Latent) (out []float32) {
	if !slices.ContainsFunc(mask.Data, func(v float32) bool { return v != 1 }) {
		return nil
	}
	for i := 0; i < len(mask.Data); i += mask.X {
		out = append(out, mask.Data[i])
	}
	return out
}

// meansOfFrames returns the mean of every frame of a mask.
func meansOfFrames(mask request.Latent) []float32 {
	out := make([]float32, max(1, mask.T))
	n := mask.Y * mask.X / len(out)
	for i := range out {
		sum := 0.
		for _, v := range mask.Data[i*n : (i+1)*n] {
			sum += float64(v)
		}
		out[i] = float32(sum / float64(n))
	}
	return out
}

// filled pads a text that is shorter than the model's minimum (family.Traits.MinText) with zero rows in front.
func (m *Model) filled(text dit.Array) dit.Array {
	n := m.Traits.MinText - text.Rows
	if n <= 0 {
		return text
	}
	return dit.Array{
		Rows: m.Traits.MinText, Cols: text.Cols, Data: append(make([]float32, n*text.Cols), text.Data...),
	}
}

// references converts the reference latents of an entry to model space.
func (m *Model) references(c *Cond, branch string) (out []dit.Reference, err error) {
	for _, l := range c.Latents {
		switch {
		case !m.Spec.References || m.Traits.Guides > 0:
			return nil, fault.Family(branch, "has a reference latent, which %s models do not take", m.Spec.Family)
		case l.B != 1 || l.C != m.Format.Channels || l.T > 1:
			return nil, fault.Family(branch, "a reference latent has %d pictures of %d channels, the %s model takes one of %d",
				l.B*max(1, l.T), l.C, m.Spec.Family, m.Format.Channels)
		}
		data := slices.Clone(l.Data)
		m.Format.ToModel(data, l.Y*l.X)
		out = append(out, dit.Reference{Y: l.Y, X: l.X, Data: data})
	}
	return out, nil
}

// sizeCond returns the network's picture size input (dit.Entry.Size), nil if it has none: for the sizes and the score
// of c, else for the size of the whole latent, even if the entry has an area, and for the score of a prompt of that
// branch (ComfyUI encode_model_conds).
func (m *Model) sizeCond(c *Cond, branch string, l request.Latent) []float32 {
	if m.Traits.SizeCond == nil {
		return nil
	}
	s := family.Uncropped(8*l.Y, 8*l.X)
	if c.Sizes != nil {
		s = *c.Sizes
	}
	switch {
	case c.Score != nil:
		s.Score = *c.Score
	case branch == "negative":
		s.Score = m.Traits.NegativeScore
	default:
		s.Score = m.Traits.Score
	}
	return m.Traits.SizeCond(s)
}

// area returns the entry's area in latent pixels, resolving a relative one to at least one row and column.
func (c *Cond) area(l request.Latent) request.Area {
	if c.AreaPart == nil {
		return c.Area
	}
	part := func(i, n int) int { return int(math.RoundToEven(c.AreaPart[i] * float64(n))) }
	return request.Area{H: max(1, part(0, l.Y)), W: max(1, part(1, l.X)), Y: part(2, l.Y), X: part(3, l.X)}
}

// frameMask returns a mask in the size of a latent. For latents with an axis of frames a batch of masks is that of the
// frames of one: scaled linearly to as many frames, to the middle one, or the mean of the middle two, for one.
func (m *Model) frameMask(mask *picture.Mask, l request.Latent) request.Latent {
	if !m.Format.Frames {
		return fitMask(mask, l.Y, l.X, l.B)
	}
	t, n := max(1, l.T), mask.Y*mask.X
	frames := &picture.Mask{B: t, Y: mask.Y, X: mask.X, Data: make([]float32, 0, t*n)}
	for i := range t {
		at := min(max((float64(i)+0.5)*float64(mask.B)/float64(t)-0.5, 0), float64(mask.B-1))
		low := int(at)
		part := float32(at - float64(low))
		first, second := mask.Data[low*n:][:n], mask.Data[min(low+1, mask.B-1)*n:][:n]
		for k, v := range first {
			if part > 0 {
				v = (1-part)*v + part*second[k]
			}
			frames.Data = append(frames.Data, v)
		}
	}
	one := fitMask(frames, l.Y/t, l.X, t)
	return request.Latent{B: l.B, C: 1, T: l.T, Y: l.Y, X: l.X, Data: slices.Repeat(one.Data, l.B)}
}

// fitMask scales a mask to latent size and repeats or truncates its batch: [B, Y, X] -> [b, 1, y, x].
func fitMask(m *picture.Mask, y, x, b int) request.Latent {
	scaled := resample.Linear(resample.Image{Data: m.Data, B: m.B, C: 1, Y: m.Y, X: m.X}, x, y)
	out := request.NewLatent(b, 1, y, x)
	for i := range b {
		copy(out.Data[i*y*x:(i+1)*y*x], scaled.Data[(i%m.B)*y*x:])
	}
	return out
}
