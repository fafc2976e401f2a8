package denoise

import (
	"sync"

	"patchbay/models/dit"
	"patchbay/parallel/rank"
)

// evaluator issues the evaluations of all parts to the ranks in the one order that pipelines keep: evaluation by
// evaluation and, within each, patch by patch. A part that is early waits for its turn. A stale evaluation of a patch
// is queued and the next patch may follow at once; a synchronous one waits for all parts and runs the whole latent.
type evaluator struct {
	d      *denoiser
	parts  []*latentPart
	cache  *caching // nil: none
	replay *replay
	report *progress
	warmup int

	mu     sync.Mutex
	moved  *sync.Cond
	err    error
	index  int         // evaluation whose turn it is
	patch  int         // part whose turn it is
	full   []float32   // network input of all items, as far as parts have supplied it
	last   map[int]int // by prediction: the evaluation that made it last, counted as ran
	now    answer      // decision on this evaluation, without outputs
	ran    int         // evaluations before this one that the network ran
	sync   bool        // this evaluation is synchronous
	synced []int       // evaluations that ran synchronously, counted as ran
	done   int         // index of the last finished synchronous evaluation
	whole  [][]float32
}

func newEvaluator(
	d *denoiser, parts []*latentPart, cache *caching, replay *replay, report *progress,
) *evaluator {
	ev := &evaluator{
		d: d, parts: parts, cache: cache, replay: replay, report: report, warmup: d.team.Plan.Warmup,
		full: make([]float32, len(d.latent)), last: map[int]int{}, done: -1,
	}
	ev.moved = sync.NewCond(&ev.mu)
	return ev
}

// abort makes every waiting part return err, and cancels the session.
func (ev *evaluator) abort(err error) {
	ev.mu.Lock()
	if ev.err == nil {
		ev.err = err
	}
	ev.mu.Unlock()
	ev.moved.Broadcast()
	ev.d.session.Cancel()
	ev.d.team.Scheduler.Wake()
}

// wait blocks until there is an error or ready holds. The caller must hold ev.mu.
func (ev *evaluator) wait(ready func() bool) {
	b := ev.d.team.Scheduler
	for ev.err == nil && !ready() {
		if b == nil {
			ev.moved.Wait()
			continue
		}
		ev.unlocked(func() {
			b.Block(false, func() bool {
				ev.mu.Lock()
				defer ev.mu.Unlock()
				return ev.err != nil || ready()
			})
		})
	}
}

// unlocked calls f without ev.mu, which the caller must hold and holds again afterwards, also in a panic.
func (ev *evaluator) unlocked(f func()) {
	ev.mu.Unlock()
	defer ev.mu.Lock()
	f()
}

// evaluate predicts the active entries for one part.
func (ev *evaluator) evaluate(s *latentPart, q question) (answer, error) {
	a, ran, wait, err := ev.turn(s, q)
	if err != nil || a.replayed || len(a.run) == 0 {
		return a, err
	}
	if wait != nil {
		a.outputs, err = wait()
	} else {
		a.outputs, err = ev.together(s, q.sigma, a.run)
	}
	if err == nil {
		ev.replay.add(ran, s, a.outputs)
	}
	return a, err
}

// turn waits for the turn of a part, begins what the network must predict for it, and passes the turn on. It returns
// what the answer is so far, the number of the evaluation among those that the network runs, and what waits for the
// outputs. That is nil if nothing runs, and in a synchronous evaluation, which keeps the turn for together.
func (ev *evaluator) turn(s *latentPart, q question) (a answer, ran int, wait func() ([][]float32, error), err error) {
	ev.mu.Lock()
	defer ev.mu.Unlock() // also in a panic, which ends the other parts: they wait for the lock
	ev.wait(func() bool { return ev.index == s.evaluations && ev.patch == s.index })
	if ev.err != nil {
		return answer{}, 0, nil, ev.err
	}
	s.paste(ev.full, q.input)
	if s.index == 0 {
		ev.decide(s, q)
	}
	a, ran = ev.now, ev.ran
	n, timestep := len(a.run), ev.d.req.Sampling.Timestep(q.sigma)
	switch {
	case ev.replay.now != nil:
		a.outputs, a.replayed = ev.replay.now[s.index*n:][:n], true
	case n > 0 && ev.sync:
		return a, ran, nil, nil
	case n > 0:
		c := ev.command(timestep, a.run, s.tokens, s.index)
		c.Sigma = q.sigma
		wait = ev.d.session.Begin(c)
	}
	ev.advance()
	return a, ran, wait, nil
}

// decide settles for all parts how this evaluation runs: what the network must predict, and whether all patches run at
// once. It looks at the first part's rows only, because the others may not have theirs yet.
func (ev *evaluator) decide(s *latentPart, q question) {
	ev.now = answer{run: q.active}
	if ev.cache != nil {
		ev.now = ev.cache.decide(s, q, ev.index)
	}
	if ev.replay.seek(ev.ran, ev.now.run) {
		ev.report.hush()
	}
	// no rank has keys and values of an evaluation that the log answered
	ev.sync = len(ev.parts) == 1 || ev.ran < ev.warmup || ev.ran == ev.replay.answered
	for _, i := range ev.now.run { // patches read keys and values of the previous evaluation, never older ones
		at, made := ev.last[i]
		ev.sync = ev.sync || !made || at != ev.ran-1
		ev.last[i] = ev.ran
	}
	if len(ev.parts) > 1 && len(ev.now.run) > 0 && ev.replay.now == nil && ev.sync {
		ev.synced = append(ev.synced, ev.ran)
	}
}

// together runs a synchronous evaluation in the turn of a part: the last part runs it for all.
func (ev *evaluator) together(s *latentPart, sigma float32, active []int) ([][]float32, error) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	mine := ev.index
	last := s.index == len(ev.parts)-1
	if !last {
		ev.advance()
		ev.wait(func() bool { return ev.done >= mine })
	} else {
		var err error
		all := dit.Range{End: ev.d.whole.grid.Tokens()}
		c := ev.command(ev.d.req.Sampling.Timestep(sigma), active, all, 0)
		c.Whole, c.Sigma = true, sigma
		ev.unlocked(func() { // it is this part's turn until advance: the others wait
			if err = ev.report.live(); err == nil {
				ev.whole, err = ev.d.session.Begin(c)()
			}
		})
		if err != nil && ev.err == nil {
			ev.err = err
		}
		ev.done = mine
		ev.advance()
	}
	if ev.err != nil {
		return nil, ev.err
	}
	if len(ev.parts) == 1 {
		return ev.whole, nil
	}
	out := make([][]float32, len(active))
	b, f := ev.d.req.Latent.B, ev.d.session.Features.Out
	for k := range out {
		out[k] = rank.CutRows(ev.whole[k], b, dit.Range{End: b}, f, s.tokens)
	}
	return out, nil
}

// advance passes the turn on. The caller must hold ev.mu.
func (ev *evaluator) advance() {
	if ev.patch++; ev.patch == len(ev.parts) {
		ev.patch = 0
		ev.index++
		if len(ev.now.run) > 0 {
			ev.ran++
		}
	}
	ev.moved.Broadcast()
}

// command collects the rows that the active entries read; entries limited to an area read all of its rows. The text
// goes with patch 0.
func (ev *evaluator) command(timestep float32, active []int, tokens dit.Range, patch int) rank.EvaluateCommand {
	d := ev.d
	c := rank.EvaluateCommand{
		Index: ev.ran, Timestep: timestep, Patch: patch, Tokens: tokens,
		Text: patch == 0, Entries: active,
	}
	rows := map[*layout][]float32{}
	for _, i := range active {
		l := d.preds[i].layout
		in, ok := rows[l]
		if !ok {
			read := tokens
			if l != d.whole {
				read = dit.Range{End: l.grid.Tokens()}
			}
			in = l.read(d.req.Latent.B, d.n, read, ev.full)
			rows[l] = in
		}
		c.Inputs = append(c.Inputs, in)
		if d.session.Nets && patch == 0 { // rows of the other patches are a step old
			all := dit.Range{End: l.grid.Tokens()}
			if tokens != all && l == d.whole {
				in = l.read(d.req.Latent.B, d.n, all, ev.full)
			}
			c.Latents = append(c.Latents, in)
		}
	}
	return c
}
