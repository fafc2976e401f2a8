package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm"
)

// patience is the maximum time for making or closing communicators.
const patience = 2 * time.Minute

// patienceOf returns how long the hosts of a group wait for each other.
func patienceOf(g comm.Group) time.Duration {
	if g.Deadline > 0 {
		return min(g.Deadline, patience)
	}
	return patience
}

// wires holds the communicators of a group: of all ranks and, if it is a pipeline, of each rank with the next one.
type wires struct {
	all   communicators
	edges []communicators // by sending rank
	where string          // devices of the ranks: the key by which Transport.kept is searched
	team  uint64          // the team that used them last
	name  []byte          // identifies them among several processes, see short

	mu    sync.Mutex
	group *members       // the group that uses them
	cause error          // not nil once they were aborted
	ends  sync.WaitGroup // running aborts
}

func (w *wires) cliques() []communicators { return append([]communicators{w.all}, w.edges...) }

// serve makes g the group that failures are reported to.
func (w *wires) serve(g *members) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = g
}

// abort aborts all communicators, once.
func (w *wires) abort(cause error) {
	w.mu.Lock()
	first := w.cause == nil
	if first {
		w.cause = cause
		w.ends.Add(1)
	}
	w.mu.Unlock()
	if !first {
		return
	}
	defer w.ends.Done()
	var all sync.WaitGroup
	for _, c := range w.cliques() {
		all.Go(c.Abort)
	}
	all.Wait()
}

// look aborts the group if NCCL reports an error by itself.
func (w *wires) look() {
	w.mu.Lock()
	g, cause := w.group, w.cause
	w.mu.Unlock()
	if cause != nil || g == nil {
		return
	}
	look := func(c communicators, ends []*end) {
		for r, e := range ends {
			if e == nil {
				continue
			}
			if _, err := c.Pending(r); err != nil {
				g.abort(&comm.Error{Text: fmt.Sprintf("%s: NCCL lost a rank", g.Name), Cause: err})
				return
			}
		}
	}
	look(w.all, g.ends)
	for r, c := range w.edges {
		look(c, g.ends[r:r+2])
	}
}

// begin makes team the one at work. It keeps the communicators of the team before, since two plans may take turns, and
// releases older ones.
func (t *Transport) begin(team uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if team == t.team || t.Beside {
		return nil
	}
	last := t.team
	t.team = team
	if err := t.drop(func(w *wires) bool { return w.team != last }); err != nil {
		return fmt.Errorf("give communicators of an earlier plan back: %w", err)
	}
	return nil
}

// usable returns the cached communicators that were not aborted.
func (t *Transport) usable() (out []*wires) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.cached {
		if !w.broken() {
			out = append(out, w)
		}
	}
	return out
}

// wires finds or makes communicators for group g. Ranks in several processes take ones that all of them have cached,
// by one of the names in known.
func (t *Transport) wires(of comm.Group, streams []*cuda.Ops, where string, g *members, known [][]byte,
) (*wires, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.find(of.Team, where, g.shared, known); w != nil {
		w.team = of.Team
		return w, nil
	}
	groups := [][]*cuda.Ops{streams}
	for r := range len(streams) - 1 {
		if of.Pipe {
			groups = append(groups, streams[r:r+2])
		}
	}
	ids, err := t.names(g, len(groups))
	if err != nil {
		return nil, fmt.Errorf("name communicators on %s: %w", where, err)
	}
	made, err := t.connect(ids, groups...)
	if err != nil {
		return nil, fmt.Errorf("make communicators on %s: %w", where, err)
	}
	w := &wires{all: made[0], edges: made[1:], where: where, team: of.Team, name: short(ids[0])}
	if err := w.begin(groups, patienceOf(of), g.Cause); err != nil {
		w.abort(err)
		return nil, fmt.Errorf("make communicators on %s: %w", where, err)
	}
	if t.cached == nil {
		t.watch.Every("look at communicators", t.period, t.ended, t.look)
	}
	t.cached = append(t.cached, w)
	return w, nil
}

// find returns cached communicators that do not serve a group of this team yet, nil if there are none. The first of the
// names in known decides, so that all processes choose the same. The caller must hold t.mu.
func (t *Transport) find(team uint64, where string, shared bool, known [][]byte) *wires {
	if !shared {
		known = [][]byte{nil}
	}
	for _, name := range known {
		i := slices.IndexFunc(t.cached, func(w *wires) bool {
			same := shared && bytes.Equal(w.name, name) || !shared && !w.broken()
			return same && w.where == where && w.team != team
		})
		if i >= 0 {
			return t.cached[i]
		}
	}
	return nil
}

// names makes the ids of that many communicators, or receives them from the process of rank 0.
func (t *Transport) names(g *members, groups int) (ids [][]byte, err error) {
	newIDs := func() (ids [][]byte, err error) {
		for range groups {
			id, err := t.newID()
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		return ids, nil
	}
	if g.shared {
		return g.talk.share(groups, newIDs)
	}
	return newIDs()
}

// broken reports whether the communicators were aborted.
func (w *wires) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause != nil
}

// drop releases the communicators that which selects. The caller must hold t.mu.
func (t *Transport) drop(which func(*wires) bool) error {
	var errs []error
	t.cached = slices.DeleteFunc(t.cached, func(w *wires) bool {
		if !which(w) {
			return false
		}
		if w.broken() {
			w.ends.Wait() // devices may be closed once the abort is over
			return true
		}
		for _, c := range w.cliques() {
			if t.between != nil { // Clique.Close needs all processes at once, and these need not agree on what is old
				c.Abort()
				continue
			}
			errs = append(errs, c.Close(patience))
		}
		return true
	})
	return errors.Join(errs...)
}

// look checks all communicators: no rank is woken by a failure between machines or inside NCCL.
func (t *Transport) look() {
	t.mu.Lock()
	cached := slices.Clone(t.cached)
	t.mu.Unlock()
	for _, w := range cached {
		w.look()
	}
}

// begin waits until the communicators are made and passes a message between any two ranks of each: the first message
// needs both hosts, and later ones must not. broken returns an error if the group has ended meanwhile.
func (w *wires) begin(groups [][]*cuda.Ops, deadline time.Duration, broken func() error) error {
	end := time.Now().Add(deadline)
	for i, c := range w.cliques() {
		for r, s := range groups[i] {
			if s == nil {
				continue
			}
			if err := settle(c, r, true, end, broken); err != nil {
				return err
			}
		}
	}
	for i, c := range w.cliques() {
		if err := greet(c, groups[i], end, broken); err != nil {
			return err
		}
	}
	return nil
}

// greet passes a message from every rank to every other one.
func greet(c communicators, streams []*cuda.Ops, end time.Time, broken func() error) error {
	n := len(streams)
	errs := make([]error, n)
	words := make([]engine.Buf, n)
	var all sync.WaitGroup
	for r, s := range streams {
		if s == nil {
			continue
		}
		if words[r], errs[r] = s.Alloc(8 * n); errs[r] != nil {
			break
		}
		all.Go(func() {
			out, in := engine.NewTensor(words[r], engine.F32, 2*n), make([][]engine.Tensor, 2)
			for p := range n {
				for side := range in {
					var word engine.Tensor
					if p != r {
						word = comm.Piece(out, side*n+p, 1)
					}
					in[side] = append(in[side], word)
				}
			}
			pending, err := c.Exchange(r, s.Stream, in[0], in[1])
			if err == nil {
				err = settle(c, r, pending, end, broken)
			}
			errs[r] = err
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if err != nil {
		c.Abort()
	}
	for _, s := range streams {
		if s != nil {
			err = errors.Join(err, s.Sync())
		}
	}
	for r, s := range streams {
		if s != nil {
			s.Free(words[r])
		}
	}
	return err
}

// settle waits until what a rank has begun is no longer pending on the host, broken returns an error or end has passed.
func settle(c communicators, rank int, pending bool, end time.Time, broken func() error) (err error) {
	for looks := 0; pending && err == nil; looks++ {
		if looks > 8 { // most calls are done at once
			time.Sleep(50 * time.Microsecond)
		}
		if pending, err = c.Pending(rank); !pending || err != nil {
			break
		}
		if err = broken(); err == nil && time.Now().After(end) {
			err = errors.New("its peers did not come in time")
		}
	}
	return err
}
