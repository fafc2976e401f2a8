package parallel

import (
	"context"
	"time"

	"patchbay/models/sampling"
)

// run opens a session, hands the loop to the sampler and closes the session. The caller holds e.work and recovers panics.
func (e *Engine) run(ctx context.Context, req *Request, observe Observe, stats Stats) (*Result, error) {
	if len(req.Sigmas) < 2 {
		return &Result{Latent: req.Latent, X0: req.Latent, Stats: stats}, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, cancelled(err)
	}
	d, err := newDenoiser(req)
	if err != nil {
		return nil, err
	}
	e.next++
	d.ctx, d.team, d.session, d.observe, d.stats = ctx, e.team, e.next, observe, stats
	if err := d.open(e.cfg.MemoryBytes); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { d.team.cancel(d.session) })
	defer stop()
	result, err := d.sample()
	traffic := d.team.end(d.session)
	if err != nil {
		return nil, err
	}
	result.Stats.Traffic = traffic
	return result, nil
}

// denoiser is the host side of one run: what turns a sampler's Denoise into evaluations and mixes their results.
type denoiser struct {
	ctx     context.Context
	team    *team
	session uint64
	observe Observe

	req     *Request
	sampler sampling.Entry
	whole   *layout
	n       int // vector elements of one item
	preds   []*prediction
	entries []Entry

	noise, latent []float32 // vectors of all items
	mask          []float32 // nil: everything may change
	maskNoise     []float32 // noise mixed into the kept part
	sigmas        []float32 // as the sampler was given them

	stats    Stats
	lastX0   []float32
	lastTick time.Time
}

func newDenoiser(req *Request) (*denoiser, error) {
	sampler, err := sampling.FindSampler(req.Sampler)
	if err != nil {
		return nil, refuse("sampler", "%v", err)
	}
	l, spec := req.Latent, req.Model.Spec
	d := &denoiser{req: req, sampler: sampler, whole: newLayout(l.C, l.Y, l.X, spec.PatchSize)}
	d.n = len(d.whole.order)
	d.preds, d.entries = newPredictions(req, d.whole, spec.PatchSize)
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

// repeatMask expands a mask to the shape of the latent.
func repeatMask(m, l Latent) []float32 {
	out := make([]float32, l.Len())
	plane := l.Y * l.X
	for i := range out {
		b, c := i/(l.C*plane)%m.B, i/plane%l.C%m.C
		out[i] = m.Data[(b*m.C+c)*plane+i%plane]
	}
	return out
}

// open starts the session on the rank with all entries that can become active.
func (d *denoiser) open(budget int64) error {
	o := OpenCommand{Model: d.req.Model.Key, Batch: d.req.Latent.B, Budget: budget}
	for i, e := range d.entries {
		o.Entries = append(o.Entries, EntryInput{Entry: e.Entry, Grid: d.preds[i].layout.grid})
	}
	ahead, err := d.sampler.EvaluationSigmas(d.req.Sampling, d.sigmas, d.req.Options)
	if err != nil {
		return refuse("sampler", "%v", err)
	}
	for _, s := range ahead {
		if s > 0 {
			o.Timesteps = append(o.Timesteps, d.req.Sampling.Timestep(s))
		}
	}
	branches := make([]int, len(d.preds))
	for i, p := range d.preds {
		branches[i] = p.branch
	}
	peak, err := d.team.open(d.session, d.req.Model.Spec, o, branches)
	d.stats.Plan, d.stats.PeakBytes = d.team.mesh.Plan.String(), peak
	return err
}

// sample runs the sampler over the whole latent.
func (d *denoiser) sample() (*Result, error) {
	req, m := d.req, d.req.Sampling
	stream := sampling.NewGenerator(req.Seed)
	if d.sampler.Noise == sampling.Continued {
		for _, n := range req.NoiseDraws {
			stream.Randn(n)
		}
	}
	draws, err := sampling.NewDraws(d.sampler.Noise, req.Seed, len(d.latent), d.sigmas, stream)
	if err != nil {
		return nil, refuse("noise", "%v", err)
	}
	r := &sampling.Run{
		Sigmas:  append([]float32(nil), d.sigmas...),
		X:       m.NoiseScaling(d.sigmas[0], d.noise, d.latent, m.MaxDenoise(d.sigmas[0])),
		Options: req.Options, Model: m,
		Denoise: d.denoise,
		Noise: func(draw int, s0, s1 float32) ([]float32, error) {
			v, err := draws.Draw(draw, s0, s1)
			if err != nil {
				return nil, err
			}
			draws.Forget(draw)
			return d.whole.toVector(req.Latent.B, v), nil
		},
		Step: d.step,
	}
	d.lastTick = time.Now()
	if err := d.sampler.Sample(r); err != nil {
		if d.ctx.Err() != nil {
			return nil, cancelled(d.ctx.Err())
		}
		return nil, unwrapRun(err)
	}
	x0 := d.lastX0
	if x0 == nil {
		x0 = r.X
	}
	m.InverseNoiseScaling(r.Sigmas[len(r.Sigmas)-1], r.X)
	return &Result{Latent: d.toLatent(r.X), X0: d.toLatent(x0), Stats: d.stats}, nil
}

func (d *denoiser) toLatent(v []float32) Latent {
	l := d.req.Latent
	l.Data = d.whole.toLatent(l.B, v)
	return l
}

// step reports progress; i counts from 0.
func (d *denoiser) step(i int, _, x0 []float32) error {
	now := time.Now()
	d.stats.StepSeconds = append(d.stats.StepSeconds, now.Sub(d.lastTick).Seconds())
	d.lastTick = now
	d.lastX0 = append(d.lastX0[:0], x0...)
	if err := d.ctx.Err(); err != nil {
		return cancelled(err)
	}
	if d.observe == nil {
		return nil
	}
	p := Progress{Step: i + 1, Steps: len(d.sigmas) - 1, Sigma: d.sigmas[min(i, len(d.sigmas)-1)]}
	if d.req.Preview {
		p.X0 = d.toLatent(x0)
	}
	return d.observe(p)
}

// denoise predicts x0 of the whole latent at sigma: mask, evaluations, blending, guidance.
func (d *denoiser) denoise(x []float32, sigma float32) (x0, uncond []float32, err error) {
	m, b := d.req.Sampling, d.req.Latent.B
	in := x
	mask := d.mask
	if mask != nil {
		mask = d.maskAt(sigma)
		kept := m.NoiseScaling(sigma, d.maskNoise, d.latent, false)
		in = make([]float32, len(x))
		for i, w := range mask {
			in[i] = float32(x[i]*w) + float32(kept[i]*(1-w))
		}
	}
	branches, err := d.predict(in, sigma, b)
	if err != nil {
		return nil, nil, err
	}
	x0, uncond = d.req.Guider.mix(len(x), branches)
	if mask != nil {
		out := make([]float32, len(x0))
		for i, w := range mask {
			out[i] = float32(x0[i]*w) + float32(d.latent[i]*(1-w))
		}
		x0 = out
	}
	return x0, uncond, nil
}

// maskAt is the mask at sigma: as given, or thresholded by how far the run is (DifferentialDiffusion, ComfyUI's node of that name).
func (d *denoiser) maskAt(sigma float32) []float32 {
	if !d.req.Differential {
		return d.mask
	}
	s, m := d.req.DifferentialStrength, d.req.Sampling
	to := max(m.SigmaMin(), d.sigmas[len(d.sigmas)-1])
	from, end, now := m.Timestep(d.sigmas[0]), m.Timestep(to), m.Timestep(sigma)
	threshold := (now - end) / (from - end)
	out := make([]float32, len(d.mask))
	for i, w := range d.mask {
		v := float32(0)
		if w >= threshold {
			v = 1
		}
		if s > 0 && s < 1 {
			v = float32(s*v) + float32((1-s)*w)
		}
		out[i] = v
	}
	return out
}

// predict evaluates all active entries of the branches that the guider needs and blends them per branch; branches not needed stay nil.
func (d *denoiser) predict(x []float32, sigma float32, b int) ([][]float32, error) {
	needed := d.req.Guider.needed(len(d.req.Branches), d.sampler.NeedsUncond)
	input := x
	if !d.req.Sampling.IsFlow() {
		input = make([]float32, len(x))
		d.req.Sampling.Input(input, x, sigma)
	}
	c := EvaluateCommand{Index: d.stats.Evaluations, Timestep: d.req.Sampling.Timestep(sigma)}
	rows := map[*layout][]float32{}
	for i, p := range d.preds {
		if !needed[p.branch] || !p.active(sigma) {
			continue
		}
		in, ok := rows[p.layout]
		if !ok {
			in = p.layout.read(b, d.n, input)
			rows[p.layout] = in
		}
		c.Entries, c.Inputs = append(c.Entries, i), append(c.Inputs, in)
	}
	d.stats.Evaluations++
	d.stats.Rows += b * len(c.Entries)
	var outputs [][]float32
	if len(c.Entries) > 0 {
		var err error
		if outputs, err = d.team.evaluate(d.session, c); err != nil {
			return nil, err
		}
	}
	out := make([][]float32, len(d.req.Branches))
	for br := range out {
		if !needed[br] {
			continue
		}
		var preds []*prediction
		var x0 [][]float32
		for k, i := range c.Entries {
			if p := d.preds[i]; p.branch == br {
				preds, x0 = append(preds, p), append(x0, d.denoised(p.layout, outputs[k], x, sigma, b))
			}
		}
		out[br] = blend(b, d.n, preds, x0)
	}
	return out, nil
}

// denoised turns one prediction into x0, indexed like the vector; elements outside an area stay 0.
func (d *denoiser) denoised(l *layout, output, x []float32, sigma float32, b int) []float32 {
	spec := d.req.Model.Spec
	v := make([]float32, len(x))
	features := spec.OutChannels * spec.PatchSize * spec.PatchSize
	if l.gather == nil && features == l.features {
		d.req.Sampling.Denoised(v, output, x, sigma)
		return v
	}
	l.write(b, d.n, features, func(at, row int) { v[at] = output[row] })
	d.req.Sampling.Denoised(v, v, x, sigma)
	return v
}

// unwrapRun finds the *Error inside what a sampler returned, else wraps it.
func unwrapRun(err error) error {
	return asError(err)
}
