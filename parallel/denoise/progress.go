package denoise

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/parallel/request"
)

// progress collects the steps of all parts; a step is reported once every part has completed it.
type progress struct {
	d       *denoiser
	observe request.Observe

	parts []*latentPart

	mu      sync.Mutex
	x0      [][]float32 // last x0 of each part
	done    map[int]int // step -> number of parts that have completed it
	silent  bool        // the log of an earlier run answers: steps are not reported
	resumed int         // steps that were not
	seconds []float64
	last    time.Time
}

func newProgress(d *denoiser, observe request.Observe) *progress {
	return &progress{d: d, observe: observe, done: map[int]int{}, last: time.Now()}
}

// hush keeps steps from being reported until live is called. The log of an earlier run answers from now on.
func (p *progress) hush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// live ends the silence and reports its steps all at once. It is called before the network runs first, when no part has
// taken a step with that, and at the end of the run.
func (p *progress) live() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.silent {
		return nil
	}
	p.silent, p.last = false, time.Now()
	if p.resumed == 0 {
		return nil
	}
	return p.report(p.resumed-1, true)
}

// begin says whose steps there will be.
func (p *progress) begin(parts []*latentPart) {
	p.parts, p.x0 = parts, make([][]float32, len(parts))
}

// step is called by the sampler of part s after each step; i counts from 0.
func (p *progress) step(s *latentPart, i int, x0 []float32) error {
	if err := p.d.ctx.Err(); err != nil {
		return fault.Cancel(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.x0[s.index] = append(p.x0[s.index][:0], x0...)
	p.done[i]++
	if p.done[i] < len(p.x0) {
		return nil
	}
	delete(p.done, i)
	if p.silent {
		p.resumed = i + 1
		return nil
	}
	now := time.Now()
	p.seconds = append(p.seconds, now.Sub(p.last).Seconds())
	p.last = now
	return p.report(i, false)
}

// report calls the observer. The caller must hold p.mu.
func (p *progress) report(i int, resumed bool) error {
	if p.observe == nil {
		return nil
	}
	steps := len(p.d.sigmas) - 1
	report := request.Progress{
		Step: min(i+1, steps), Steps: steps, Sigma: p.d.sigmas[min(i, steps)], Resumed: resumed,
		Sent: p.d.session.Bytes(),
	}
	if p.d.req.Preview {
		v := make([]float32, len(p.d.latent))
		for _, other := range p.parts {
			other.paste(v, p.x0[other.index])
		}
		report.X0 = p.d.toLatent(v)
	}
	err := p.observe(report)
	if err != nil && !errors.As(err, new(*fault.Error)) {
		err = fault.Wrap(fault.BadInput, "", fmt.Errorf("ended by its observer after step %d: %w", report.Step, err))
	}
	return err
}

// sharedDraws gives every part its elements of the same noise draws.
type sharedDraws struct {
	draws *sampling.Draws
	mu    sync.Mutex
	next  []int // by part: the first draw that it has not taken
}

// draws makes the noise source that the parts of the run share.
func (d *denoiser) draws(parts int) (*sharedDraws, error) {
	stream := sampling.NewGenerator(d.req.Seed)
	if d.sampler.Noise == sampling.Continued {
		for _, n := range d.req.NoiseDraws {
			stream.Randn(n)
		}
	}
	v, err := sampling.NewDraws(d.sampler.Noise, d.req.Seed, len(d.latent), d.sigmas, stream)
	if err != nil {
		return nil, fault.Bad("noise", "%v", err)
	}
	return &sharedDraws{draws: v, next: make([]int, parts)}, nil
}

// take returns the part's elements of a draw and forgets draws that all parts have taken.
func (n *sharedDraws) take(s *latentPart, draw int, s0, s1 float32) ([]float32, error) {
	v, err := n.draws.Draw(draw, s0, s1)
	if err != nil {
		return nil, err
	}
	out := s.cut(s.d.whole.toVector(s.d.req.Latent.B, v))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next[s.index] = draw + 1
	low := draw
	for _, v := range n.next {
		low = min(low, v)
	}
	n.draws.Forget(low)
	return out, nil
}
