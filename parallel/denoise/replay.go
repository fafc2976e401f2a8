package denoise

import (
	"sync"

	"patchbay/models/dit"
	"patchbay/parallel/resume"
)

// replay answers evaluations with what an earlier run of the same request has logged, then logs those that the network
// runs. Only whole evaluations count: those of which all parts have their outputs.
type replay struct {
	d        *denoiser
	parts    []*latentPart
	answered int         // evaluations, by their number among those that the network must run
	now      [][]float32 // outputs of the current one, by part and prediction; nil: the network runs it

	mu     sync.Mutex // guards the next two
	log    *resume.Log
	partly map[int]*partly // by evaluation
}

// partly is the outputs of an evaluation, by part and prediction, of which some parts still lack theirs.
type partly struct {
	outputs [][]float32
	missing int
}

func newReplay(d *denoiser, parts []*latentPart, log *resume.Log) *replay {
	return &replay{d: d, parts: parts, log: log, partly: map[int]*partly{}}
}

// seek reports whether the log answers evaluation ran (see evaluator.ran), for which the predictions run are needed.
func (r *replay) seek(ran int, run []int) bool {
	r.now = nil
	if len(run) == 0 || ran > r.answered {
		return false
	}
	var sizes []int
	total := 0
	for _, s := range r.parts {
		for _, i := range run {
			tokens := s.tokens
			if l := r.d.preds[i].layout; l != r.d.whole {
				tokens = dit.Range{End: l.grid.Tokens()}
			}
			n := r.d.req.Latent.B * tokens.Len() * r.d.session.Features.Out
			sizes, total = append(sizes, n), total+n
		}
	}
	r.mu.Lock()
	values := r.log.Next(total)
	r.mu.Unlock()
	if values == nil {
		return false
	}
	r.answered++
	for _, n := range sizes {
		r.now, values = append(r.now, values[:n:n]), values[n:]
	}
	return true
}

// add logs a part's outputs of evaluation ran, once all parts have theirs.
func (r *replay) add(ran int, s *latentPart, outputs [][]float32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.partly[ran]
	if p == nil {
		p = &partly{outputs: make([][]float32, len(r.parts)*len(outputs)), missing: len(r.parts)}
		r.partly[ran] = p
	}
	copy(p.outputs[s.index*len(outputs):], outputs)
	if p.missing--; p.missing == 0 {
		delete(r.partly, ran)
		r.log.Add(p.outputs...)
	}
}
