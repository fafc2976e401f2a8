package denoise

import (
	"context"
	"slices"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/parallel/hardware"
	"patchbay/parallel/leader"
	"patchbay/parallel/request"
)

// denoiser is the leader's side of one run: what the samplers and evaluations of all parts have in common.
type denoiser struct {
	ctx     context.Context
	team    *leader.Team
	session *leader.Session

	req     *request.Request
	device  hardware.Device // stages are balanced by its rates
	kernels string          // Target.Kernels
	sampler sampling.Method
	whole   *layout
	n       int // vector elements of one item
	preds   []*prediction

	noise, latent []float32 // vectors of all items
	mask          []float32 // nil: everything may change
	maskNoise     []float32 // noise mixed into the kept part
	sigmas        []float32 // as given to the sampler
	expected      int       // number of evaluations; 0: not known in advance

	stats request.Stats
}

func newDenoiser(req *request.Request) (*denoiser, error) {
	sampler, err := sampling.FindSampler(req.Sampler)
	if err != nil {
		return nil, fault.Bad("sampler", "%v", err)
	}
	l, spec := req.Latent, req.Model.Spec
	d := &denoiser{req: req, sampler: sampler}
	d.whole = newLayout(l.C, spec.PatchSize, req.Grid(), spec.Sound, req.Kept())
	d.n = len(d.whole.order)
	d.preds = newPredictions(req, d.whole)
	d.latent = d.whole.toVector(l.B, l.Data)
	d.noise = make([]float32, len(d.latent))
	if len(req.Noise.Data) > 0 {
		d.noise = d.whole.toVector(l.B, req.Noise.Data)
	}
	d.sigmas = append([]float32(nil), req.Sigmas...)
	if len(req.Mask.Data) > 0 {
		d.mask = d.whole.toVector(l.B, repeatMask(req.Mask, l))
		d.maskNoise = d.noise
		if sampler.MaskNoise {
			d.maskNoise = d.whole.toVector(l.B, sampling.MaskNoise(req.Seed, len(d.noise)))
		}
	}
	return d, nil
}

// repeatMask broadcasts a mask to the shape of the latent, whose sound may change where the mask has none.
func repeatMask(m, l request.Latent) []float32 {
	out, item, given := make([]float32, 0, l.Len()), l.Item(), m.Item()
	repeat := func(mask []float32, c, plane, n int) {
		for i := range n {
			out = append(out, mask[i/plane%c*plane+i%plane])
		}
	}
	video := l.C * l.Y * l.X
	for b := range l.B {
		mask := m.Data[b%m.B*given:][:given]
		repeat(mask, m.C, l.Y*l.X, video)
		if mask = mask[m.C*l.Y*l.X:]; len(mask) > 0 {
			repeat(mask, m.Sound.C, l.Sound.Y*l.Sound.X, item-video)
		} else {
			out = append(out, slices.Repeat([]float32{1}, item-video)...)
		}
	}
	return out
}

// textTokens returns the length of the longest text that goes through the blocks with the image.
func (d *denoiser) textTokens() int {
	n := 0
	if spec := d.req.Model.Spec; spec.JointText() {
		for _, p := range d.preds {
			n = max(n, spec.JointTokens(&p.Entry.Entry))
		}
	}
	return n
}

func (d *denoiser) toLatent(v []float32) request.Latent {
	l := d.req.Latent
	l.Data = d.whole.toLatent(l.B, v)
	return l
}
