// Package denoise is the loop of one sampling run. It knows teams and sessions, but neither what is resident nor which
// plan was chosen. From top to bottom: denoise.go opens a session on a team and starts one sampler per part of the
// latent (all of it, or one patch of a pipeline); predict.go masks, blends and guides what a part gets; evaluator.go
// puts the evaluations of all parts in order; replay.go answers those that an earlier run has logged, cache.go some
// others, by the rule of cache_easy.go or cache_lazy.go, which go by what gauge.go measures; progress.go reports steps
// and shares noise out; latent_part.go is a part, denoiser.go what all parts have in common, mixing.go blends entries
// and guidance in x0 space, layout.go orders the latent's elements by token.
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
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/parallel/resume"
	"patchbay/parallel/scope"
)

// Target is what a run works on.
type Target struct {
	Team     *leader.Team
	Session  uint64                // number of the run's session, different from that of every other one
	Device   hardware.Device       // stages are balanced by its rates
	DeviceOf func(rank int) string // nil: no device has memory of its own
	Memory   int64                 // bound of a session's memory in bytes, 0: none
	Kernels  string                // what computes there: others may compute other bits
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
	d.ctx, d.team, d.stats, d.device, d.kernels = ctx, on.Team, stats, on.Device, on.Kernels
	if of := on.DeviceOf; of != nil {
		for r := range on.Team.Plan.Ranks() {
			d.stats.Devices = append(d.stats.Devices, of(r))
		}
	}
	d.session = leader.NewSession(on.Team, on.Session)
	reporter := newProgress(d, observe)
	stop := context.AfterFunc(ctx, d.session.Cancel)
	defer stop()
	defer d.team.Scheduler.Enter()()
	if err := d.open(on.Memory); err != nil {
		return nil, err
	}
	result, err := d.sample(reporter)
	if err != nil {
		if scope.AsError(err).Code == fault.Cancelled && !d.team.Interruptible && d.session.Close(&d.stats) == nil {
			d.team.InStep = true
		}
		return nil, err
	}
	return result, d.session.Close(&result.Stats)
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
	schedule := make([]float32, len(d.sigmas))
	for i, s := range d.sigmas {
		schedule[i] = d.req.Sampling.Timestep(s)
	}
	branches := make([]int, len(d.preds))
	for i, p := range d.preds {
		e := p.Entry
		in := rank.EntryInput{Entries: []dit.Entry{e.Entry}, Grid: p.layout.grid}
		in.Entries[0].Schedule = schedule
		if scale := d.req.Sampling.SoundScale(); scale != 1 {
			in.Entries[0].SoundRatio = 1 / scale
		}
		for _, r := range e.Residuals {
			for n := in.Grid.Tokens() * d.req.Model.Spec.Width * o.Batch; len(r.Rows) < n; { // repeat one for all items
				r.Rows = slices.Concat(r.Rows, r.Rows[:min(len(r.Rows), n-len(r.Rows))])
			}
			in.Residuals = append(in.Residuals, r)
		}
		for _, c := range e.Control {
			entry := e.Entry
			entry.References, entry.Biases, entry.Prefix = nil, nil, dit.Array{}
			entry.Hint, entry.Mode = tokensOf(c.Hint, c.Net.Spec), c.Mode
			if c.Patch || c.Net.Spec.Follows {
				entry = dit.Entry{Hint: entry.Hint}
			}
			in.Control = append(in.Control, rank.ControlInput{
				Model: c.Net.Key, Entry: entry, Strength: c.Strength, Start: c.SigmaStart, End: c.SigmaEnd, Patch: c.Patch,
			})
			d.session.Nets = d.session.Nets || !c.Patch
		}
		o.Entries = append(o.Entries, in)
		branches[i] = p.branch
	}
	if d.req.Profile {
		o.Profile = time.Now().UnixNano()
	}
	sigmas, err := d.sampler.EvaluationSigmas(d.req.Sampling, d.sigmas, d.req.Options)
	if err != nil {
		return fault.Bad("sampler", "%v", err)
	}
	d.expected = len(sigmas)
	for _, s := range sigmas {
		if s > 0 {
			o.Timesteps = append(o.Timesteps, d.req.Sampling.Timestep(s))
		}
	}
	d.stats.Plan, d.stats.Compute = d.team.Plan.String(), d.req.Compute
	d.stats.PeakBytes, err = d.session.Open(d.req.Model.Spec, o, branches)
	return err
}

// sample runs one sampler instance per part of the latent: all of it, or each patch of a pipeline.
func (d *denoiser) sample(reporter *progress) (*request.Result, error) {
	cache := newCaching(d)
	parts := d.latentParts(cache != nil)
	var log *resume.Log
	if f := d.req.Resume; f != nil {
		log = f.Open(d.req.ResumeKey(f.Build, d.kernels, d.team.Plan.String()))
		defer log.Close()
	}
	evaluate := newEvaluator(d, parts, cache, newReplay(d, parts, log), reporter)
	reporter.begin(parts)
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
			Step: func(i int, _, x0 []float32) error { return reporter.step(s, i, x0) },
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
	if err := reporter.live(); err != nil {
		return nil, err
	}
	return d.result(runs, evaluate, reporter), nil
}

// latentParts splits the run into sampler instances.
func (d *denoiser) latentParts(cached bool) []*latentPart {
	p := d.team.Plan
	grid := d.whole.grid
	patches := []dit.Range{{End: grid.Tokens()}}
	exact := d.expected > 0 && p.Warmup >= d.expected
	// a cache of an exact plan must decide from the whole latent, as on one rank; rescaled guidance looks at all of it
	if p.Pipe > 1 && !d.sampler.Synchronous && !(cached && exact) && d.req.Guider.Rescale == nil {
		patches = plan.PatchRanges(d.textTokens(), grid, p.Patches)
	}
	out := make([]*latentPart, len(patches))
	for i, tokens := range patches {
		out[i] = d.newLatentPart(i, tokens)
	}
	return out
}

// result assembles the result from the parts.
func (d *denoiser) result(runs []*sampling.Run, evaluate *evaluator, reporter *progress) *request.Result {
	parts := evaluate.parts
	x, x0 := make([]float32, len(d.latent)), make([]float32, len(d.latent))
	for i, s := range parts {
		r := runs[i]
		last := reporter.x0[i]
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
	d.stats.Synchronous, d.stats.Resumed = evaluate.synced, evaluate.replay.answered
	d.stats.Evaluations -= d.stats.Resumed
	if c := evaluate.cache; c != nil {
		d.stats.Reused, d.stats.Changes = c.reused, c.changes
		d.stats.Evaluations -= len(c.reused)
	}
	d.stats.StepSeconds = reporter.seconds
	return &request.Result{Latent: d.toLatent(x), X0: d.toLatent(x0), Stats: d.stats}
}
