// Package denoise is the loop of one sampling run. denoise.go opens a session on a team and starts one sampler per part
// of the latent (latent_part.go: all of it, or one patch of a pipeline), layout.go orders the latent's elements by
// token, mixing.go blends entries and guidance in x0 space, evaluator.go puts the evaluations of all parts in order,
// reuse.go answers evaluations without the network, progress.go reports steps. It knows teams and sessions, but neither
// what is resident nor which plan was chosen.
package denoise

import (
	"context"
	"fmt"
	"slices"
	"time"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/leader"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
)

// Target is what a run works on.
type Target struct {
	Team     *leader.Team
	Session  uint64                // number of the run's session, different from that of every other one
	Device   hardware.Device       // stages are balanced by its rates
	DeviceOf func(rank int) string // nil: no device has memory of its own
	Memory   int64                 // bound of a session's memory in bytes, 0: none
}

// Run opens a session, runs the samplers and closes the session. The caller must have taken the ranks, and must recover
// panics.
func Run(
	ctx context.Context, req *request.Request, observe request.Observe, stats request.Stats, on Target,
) (*request.Result, error) {
	if len(req.Sigmas) == 0 {
		return &request.Result{Latent: req.Latent, X0: req.Latent, Stats: stats}, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, fault.Cancel(err)
	}
	d, err := newDenoiser(req)
	if err != nil {
		return nil, err
	}
	if len(req.Sigmas) == 1 { // no step: noise is mixed in and taken out again, as ComfyUI does
		m, sigma := req.Sampling, req.Sigmas[0]
		x := m.NoiseScaling(sigma, d.noise, d.latent, m.MaxDenoise(sigma))
		m.InverseNoiseScaling(sigma, x)
		return &request.Result{Latent: d.toLatent(x), X0: d.toLatent(x), Stats: stats}, nil
	}
	d.ctx, d.team, d.stats, d.device = ctx, on.Team, stats, on.Device
	if of := on.DeviceOf; of != nil {
		for r := range on.Team.Plan.Ranks() {
			d.stats.Devices = append(d.stats.Devices, of(r))
		}
	}
	d.session = leader.NewSession(on.Team, on.Session)
	d.progress = newProgress(d, observe)
	stop := context.AfterFunc(ctx, d.session.Cancel)
	defer stop()
	defer d.team.Scheduler.Enter()()
	if err := d.open(on.Memory); err != nil {
		return nil, err
	}
	result, err := d.sample()
	if err != nil {
		if scope.AsError(err).Code == fault.Cancelled && !d.team.Interruptible && d.session.Close(&d.stats) == nil {
			d.team.InStep = true
		}
		return nil, err
	}
	return result, d.session.Close(&result.Stats)
}

// denoiser is the leader's side of one run: what the samplers and evaluations of all parts have in common.
type denoiser struct {
	ctx       context.Context
	team      *leader.Team
	session   *leader.Session
	progress  *progress
	evaluator *evaluator
	reuser    *reuser // nil: no cache

	req     *request.Request
	device  hardware.Device // stages are balanced by its rates
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
	d := &denoiser{req: req, sampler: sampler, whole: newLayout(l.C, spec.PatchSize, l.Grid(spec))}
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
	d.reuser = newReuser(d)
	return d, nil
}

// repeatMask broadcasts a mask to the shape of the latent.
func repeatMask(m, l request.Latent) []float32 {
	out := make([]float32, l.Len())
	plane := l.Y * l.X
	for i := range out {
		b, c := i/(l.C*plane)%m.B, i/plane%l.C%m.C
		out[i] = m.Data[(b*m.C+c)*plane+i%plane]
	}
	return out
}

// open starts the session on the ranks, with all entries that may become active.
func (d *denoiser) open(budget int64) error {
	o := rank.OpenCommand{
		Model: d.req.Model.Key, Plan: d.team.Plan, DType: d.req.Compute, Batch: d.req.Latent.B,
		Text: d.textTokens(), Budget: budget,
	}
	w := d.req.Workload()
	w.Device = d.device
	d.session.Merged = w.Together(d.team.Plan)
	if d.team.Plan.Pipe > 1 {
		o.Lanes = forecast.NewPartition(w, d.team.Plan).Lanes
	}
	branches := make([]int, len(d.preds))
	for i, p := range d.preds {
		e := p.Entry
		in := rank.EntryInput{Entries: []dit.Entry{e.Entry}, Grid: p.layout.grid}
		for _, r := range e.Residuals {
			for n := in.Grid.Tokens() * d.req.Model.Spec.Width * o.Batch; len(r.Rows) < n; { // repeat one for all items
				r.Rows = slices.Concat(r.Rows, r.Rows[:min(len(r.Rows), n-len(r.Rows))])
			}
			in.Residuals = append(in.Residuals, r)
		}
		for _, c := range e.Control {
			told := e.Entry
			told.References, told.Biases, told.Prefix = nil, nil, dit.Array{}
			told.Hint, told.Mode = tokensOf(c.Hint, c.Net.Spec), c.Mode
			if c.Patch || c.Net.Spec.Follows {
				told = dit.Entry{Hint: told.Hint}
			}
			in.Control = append(in.Control, rank.ControlInput{
				Model: c.Net.Key, Entry: told, Strength: c.Strength, Start: c.SigmaStart, End: c.SigmaEnd, Patch: c.Patch,
			})
			d.session.Nets = d.session.Nets || !c.Patch
		}
		o.Entries = append(o.Entries, in)
		branches[i] = p.branch
	}
	if d.req.Profile {
		o.Profile = time.Now().UnixNano()
	}
	ahead, err := d.sampler.EvaluationSigmas(d.req.Sampling, d.sigmas, d.req.Options)
	if err != nil {
		return fault.Bad("sampler", "%v", err)
	}
	d.expected = len(ahead)
	for _, s := range ahead {
		if s > 0 {
			o.Timesteps = append(o.Timesteps, d.req.Sampling.Timestep(s))
		}
	}
	d.stats.Plan, d.stats.Compute = d.team.Plan.String(), d.req.Compute
	d.stats.PeakBytes, err = d.session.Open(d.req.Model.Spec, o, branches)
	return err
}

// sample runs one sampler instance per part of the latent: all of it, or each patch of a pipeline.
func (d *denoiser) sample() (*request.Result, error) {
	parts, evaluate := d.latentParts()
	draws, err := d.draws(len(parts))
	if err != nil {
		return nil, err
	}
	m := d.req.Sampling
	runs := make([]*sampling.Run, len(parts))
	for i, s := range parts {
		runs[i] = &sampling.Run{
			Sigmas:  append([]float32(nil), d.sigmas...),
			X:       m.NoiseScaling(d.sigmas[0], s.noise, s.latent, m.MaxDenoise(d.sigmas[0])),
			Options: d.req.Options, Model: m, Elements: len(d.latent),
			Denoise: func(x []float32, sigma float32) ([]float32, []float32, error) { return s.denoise(evaluate, x, sigma) },
			Noise: func(draw int, s0, s1 float32) ([]float32, error) {
				return draws.take(s, draw, s0, s1)
			},
			Step: func(i int, _, x0 []float32) error { return d.progress.step(s, i, x0) },
		}
	}
	g, scheduler := scope.New(evaluate.abort), d.team.Scheduler
	for i, r := range runs {
		name := fmt.Sprintf("sampler %s, patch %d", d.sampler.Name, i)
		task := scheduler.Join(name)
		g.Go(name, func() error {
			scheduler.Start(task)
			defer scheduler.Leave(task)
			err := scope.Recovered(name, func() error { return d.sampler.Sample(r) })
			if err != nil {
				evaluate.abort(err)
			}
			return err
		})
	}
	if scheduler != nil {
		scheduler.Block(false, func() bool { return scheduler.AtMost(len(d.team.Members) + 1) })
	}
	if err := g.Wait(); err != nil {
		if d.ctx.Err() != nil {
			return nil, fault.Cancel(d.ctx.Err())
		}
		return nil, scope.AsError(err)
	}
	return d.result(parts, runs)
}

// result assembles the result from the parts.
func (d *denoiser) result(parts []*latentPart, runs []*sampling.Run) (*request.Result, error) {
	x, x0 := make([]float32, len(d.latent)), make([]float32, len(d.latent))
	for i, s := range parts {
		r := runs[i]
		last := d.progress.x0[i]
		if last == nil {
			last = r.X
		}
		s.paste(x0, last)
		d.req.Sampling.InverseNoiseScaling(r.Sigmas[len(r.Sigmas)-1], r.X)
		s.paste(x, r.X)
		d.stats.Evaluations = max(d.stats.Evaluations, s.evaluations)
	}
	for _, s := range parts {
		d.stats.Rows = max(d.stats.Rows, s.predicted)
	}
	d.stats.Synchronous = d.evaluator.synced
	if r := d.reuser; r != nil {
		d.stats.Reused, d.stats.Changes = r.reused, r.changes
		d.stats.Evaluations -= len(r.reused)
	}
	d.stats.StepSeconds = d.progress.seconds
	return &request.Result{Latent: d.toLatent(x), X0: d.toLatent(x0), Stats: d.stats}, nil
}

func (d *denoiser) toLatent(v []float32) request.Latent {
	l := d.req.Latent
	l.Data = d.whole.toLatent(l.B, v)
	return l
}
