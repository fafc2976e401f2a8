package nccl

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm"
)

// patience is how long communicators may take to be made, or given back.
const patience = 2 * time.Minute

// wires are the communicators of a group: of all ranks, and of each rank with the next one where messages pass.
type wires struct {
	all   communicators
	edges []communicators // by the rank that sends
	where string          // devices of the ranks, what Transport.kept is searched by
	team  uint64          // that used them last

	mu    sync.Mutex
	group *group // that uses them
	cause error  // they were aborted
}

// cliques are all communicators.
func (w *wires) cliques() []communicators { return append([]communicators{w.all}, w.edges...) }

// serve makes g the group that is told of failures.
func (w *wires) serve(g *group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = g
}

// abort ends what runs on all of them, once.
func (w *wires) abort(cause error) {
	w.mu.Lock()
	first := w.cause == nil
	if first {
		w.cause = cause
	}
	w.mu.Unlock()
	if !first {
		return
	}
	var all sync.WaitGroup
	for _, c := range w.cliques() {
		all.Go(c.Abort)
	}
	all.Wait()
}

// look aborts what an error has come to by itself.
func (w *wires) look(ranks int) {
	w.mu.Lock()
	g, cause := w.group, w.cause
	w.mu.Unlock()
	if cause != nil || g == nil {
		return
	}
	look := func(c communicators, ranks int) {
		for r := range ranks {
			if _, err := c.Pending(r); err != nil {
				g.abort(&comm.Error{Text: fmt.Sprintf("%s: NCCL lost a rank", g.name), Cause: err})
				return
			}
		}
	}
	look(w.all, ranks)
	for _, c := range w.edges {
		look(c, 2)
	}
}

// wires finds or makes communicators for a group. Those of the team before are kept for this one, and older ones given
// back: two plans may take turns.
func (t *Transport) wires(of comm.Group, streams []*cuda.Ops, where string) (*wires, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of.Team != t.team {
		last := t.team
		t.team = of.Team
		if err := t.drop(func(w *wires) bool { return w.team != last }); err != nil {
			return nil, fmt.Errorf("give communicators of an earlier plan back: %w", err)
		}
	}
	i := slices.IndexFunc(t.kept, func(w *wires) bool { return w.where == where && w.team != t.team && !w.broken() })
	if i >= 0 {
		t.kept[i].team = t.team
		return t.kept[i], nil
	}
	groups := [][]*cuda.Ops{streams}
	for r := range len(streams) - 1 {
		if of.Pipe {
			groups = append(groups, streams[r:r+2])
		}
	}
	made, err := t.connect(groups...)
	if err != nil {
		return nil, fmt.Errorf("make communicators on %s: %w", where, err)
	}
	w := &wires{all: made[0], edges: made[1:], where: where, team: t.team}
	if err := w.begin(groups, of.Deadline); err != nil {
		w.abort(err)
		return nil, fmt.Errorf("make communicators on %s: %w", where, err)
	}
	if t.kept == nil {
		t.watch.Go(t.look)
	}
	t.kept = append(t.kept, w)
	return w, nil
}

// broken reports whether they were aborted.
func (w *wires) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause != nil
}

// drop gives communicators back; the lock is held.
func (t *Transport) drop(which func(*wires) bool) error {
	var errs []error
	t.kept = slices.DeleteFunc(t.kept, func(w *wires) bool {
		if !which(w) {
			return false
		}
		if !w.broken() {
			for _, c := range w.cliques() {
				errs = append(errs, c.Close(patience))
			}
		}
		return true
	})
	return errors.Join(errs...)
}

// look watches the communicators until Close: what goes wrong between hosts, or inside NCCL, wakes nobody by itself.
func (t *Transport) look() {
	tick := time.NewTicker(t.period)
	defer tick.Stop()
	for {
		select {
		case <-t.ended:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		kept := slices.Clone(t.kept)
		t.mu.Unlock()
		for _, w := range kept {
			w.mu.Lock()
			g := w.group
			w.mu.Unlock()
			if g != nil {
				w.look(len(g.ends))
			}
		}
	}
}

// begin waits until the communicators are made and passes a word between any two ranks of each: the first one takes
// both hosts, and later ones shall not.
func (w *wires) begin(groups [][]*cuda.Ops, deadline time.Duration) error {
	if deadline == 0 || deadline > patience {
		deadline = patience
	}
	end := time.Now().Add(deadline)
	for i, c := range w.cliques() {
		for r := range groups[i] {
			if err := settle(c, r, true, end); err != nil {
				return err
			}
		}
	}
	for i, c := range w.cliques() {
		if err := greet(c, groups[i], end); err != nil {
			return err
		}
	}
	return nil
}

// greet passes a word from every rank to every other one.
func greet(c communicators, streams []*cuda.Ops, end time.Time) error {
	n := len(streams)
	errs := make([]error, n)
	words := make([]engine.Buf, n)
	var all sync.WaitGroup
	for r, s := range streams {
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
			pending, err := c.Exchange(r, s, in[0], in[1])
			if err == nil {
				err = settle(c, r, pending, end)
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
		err = errors.Join(err, s.Sync())
	}
	for r, s := range streams {
		s.Free(words[r])
	}
	return err
}

// settle waits until what a rank has begun is done on the host.
func settle(c communicators, rank int, pending bool, end time.Time) (err error) {
	for looks := 0; pending && err == nil; looks++ {
		if looks > 8 { // most are done at once
			time.Sleep(50 * time.Microsecond)
		}
		if pending, err = c.Pending(rank); pending && err == nil && time.Now().After(end) {
			return errors.New("its peers did not come in time")
		}
	}
	return err
}
