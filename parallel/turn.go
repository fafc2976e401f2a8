package parallel

import (
	"context"
	"sync/atomic"
)

// turn is the right to use the ranks of an engine. Whoever has it is alone, but for one thing: a request on a pipeline passes its turn on as soon as all its
// evaluations are queued, and the next request, if it has the same plan and weights, fills the first stages while the last ones still work for the one
// before. Sessions share nothing that is computed, so pictures do not depend on it.
type turn struct {
	e        *Engine
	before   chan struct{} // closed when nothing of the request before is on the ranks any more
	done     chan struct{} // the same of this one
	size     requestSize
	may      bool        // may be passed on
	handed   atomic.Bool // was passed on
	followed atomic.Bool // another request has begun
	ended    bool
	kept     bool // done is closed elsewhere
}

// take waits for the turn. The request before may still have work on the ranks: settle waits for that. The error is ctx's.
func (e *Engine) take(ctx context.Context) (*turn, error) {
	select {
	case e.work <- struct{}{}:
	case <-ctx.Done():
		return nil, cancelled(ctx.Err())
	}
	if ctx.Err() != nil {
		<-e.work
		return nil, cancelled(ctx.Err())
	}
	t := &turn{e: e, done: make(chan struct{})}
	if e.tail != nil {
		t.before = e.tail.done
	}
	return t, nil
}

// settle waits until this turn is alone.
func (t *turn) settle() {
	if t.before != nil {
		<-t.before
	}
}

// follow decides whether a request of this plan may begin beside the one that is on its way out, and waits for that one if not. Where memory is bounded, it
// must not need more than that one: refusing it later would cost both.
func (t *turn) follow(p Plan, r *Request) {
	e := t.e
	t.size = r.size()
	if e.tail != nil && e.team != nil && e.team.plan == p && !e.team.spoiled.Load() && e.team.broken.Load() == 0 &&
		e.places.holds(r.Model, p) && (e.cfg.MemoryBytes == 0 || t.size.within(e.tail.size)) {
		e.tail.followed.Store(true)
		return
	}
	t.alone()
}

// requestSize is what the memory of a request depends on, besides model and plan.
type requestSize struct{ pictures, pixels, text, entries, bytes int }

func (r *Request) size() requestSize {
	out := requestSize{pictures: r.Latent.B, pixels: r.Latent.Y * r.Latent.X, bytes: r.Compute.Size()}
	for _, b := range r.Branches {
		for _, e := range b.Entries {
			out.text, out.entries = max(out.text, e.Context.Rows+e.Context2.Rows), out.entries+1
		}
	}
	return out
}

// within tells that a request takes no more memory than one of size o.
func (s requestSize) within(o requestSize) bool {
	return s.pictures <= o.pictures && s.pixels <= o.pixels && s.text <= o.text && s.entries <= o.entries && s.bytes <= o.bytes
}

// alone waits until this turn is, and ends ranks that a failed request has left behind.
func (t *turn) alone() {
	t.settle()
	if e := t.e; e.team != nil && e.team.spoiled.Load() {
		e.dismiss()
	}
	t.e.tail = nil
}

// pass gives the turn on. The request still has to collect results.
func (t *turn) pass() {
	if !t.may || t.handed.Load() {
		return
	}
	t.settle()
	t.handed.Store(true)
	t.e.tail = t
	<-t.e.work
}

// behind tells whether the turn began while the request before still had work on the ranks.
func (t *turn) behind() bool {
	if t.before == nil {
		return false
	}
	select {
	case <-t.before:
		return false
	default:
		return true
	}
}

// passed tells whether the turn was given on.
func (t *turn) passed() bool { return t.handed.Load() }

// leave makes the end of the request that of its last commands, which wait waits for.
func (t *turn) leave(wait func() ([]Reply, error)) {
	t.kept = true
	NewGroup(nil).Go("end of a session", func() error {
		defer close(t.done)
		_, err := wait()
		return err
	})
}

// end gives the turn back, once.
func (t *turn) end() {
	if t.ended {
		return
	}
	t.ended = true
	if !t.kept {
		defer close(t.done)
	}
	if !t.passed() {
		t.settle()
		<-t.e.work
	}
}

// holds tells whether all parts of the weights that ranks of a plan hold are resident.
func (p *placements) holds(m Model, plan Plan) bool {
	for _, h := range plan.holdings(m.Spec, p.device) {
		if _, ok := p.resident(heldKey(m.Key, h)); !ok {
			return false
		}
	}
	return true
}

// passable tells whether a request of this plan can let another one in behind it: it has stages, and nothing else looks at the ranks. On folded stages the way
// back reads what the way down has kept until the very end.
func (e *Engine) passable(p Plan, r *Request) bool {
	return p.Pipe > 1 && p.parts() == 1 && !r.Profile && e.cfg.Order == 0 && !skips(r.Model.Spec)
}

// lost tells whether a request ended because another one took the exchanges of its ranks with it.
func (t *team) lost(session uint64, err error) bool {
	by := t.broken.Load()
	return err != nil && asError(err).Code == PeerLost && by != 0 && by != session
}
