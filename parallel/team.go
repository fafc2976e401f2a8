package parallel

import (
	"fmt"
	"sync/atomic"
	"time"

	"patchbay/engine"
	"patchbay/models/dit"
)

// team is the ranks of one plan, as the leader sees them: it cuts commands for each of them and puts their answers together.
type team struct {
	plan  Plan // as asked for
	mesh  Mesh // of lanes: Pipe counts the stops of a micro-step
	links []*rankLink
	group *Group
	watch watchdog
	left  atomic.Bool   // a rank hangs and was left behind
	baton *baton        // nil: everybody runs freely
	ended chan struct{} // closed when all ranks have returned, after close
	// The rest is fixed when a session opens.
	batch    []dit.Range // items of each data part
	cfgOf    []int       // cfg group of each entry
	entries  []entrySize
	features struct{ in, out int }
}

// entrySize is the length of an entry's sequence.
type entrySize struct{ text, image int }

// rows returns what each sequence rank computes of an entry in one evaluation, by its place in the sequence.
func (c *EvaluateCommand) rows(e entrySize, parts int) []dit.Rows {
	if c.Whole {
		return sequenceRows(e.text, e.image, parts)
	}
	text := 0
	if c.Text {
		text = e.text
	}
	out := sequenceRows(text, c.Tokens.Len(), parts)
	for i := range out {
		out[i].Image.Start += c.Tokens.Start
		out[i].Image.End += c.Tokens.Start
	}
	return out
}

// rendezvous is how long a band of the VAE waits for another before the request fails and names both.
const rendezvous = 2 * time.Minute

// queueLength bounds the commands that wait for one rank: pipelines queue one for each patch of at most two evaluations.
const queueLength = 1024

// newTeam starts the ranks of a plan; folded says that micro-steps go down and back up (fold.go).
func newTeam(plan Plan, folded bool, newOps func(rank, ranks int) (engine.Ops, error), weights func(string) (dit.Model, bool), recode func(any) (any, error), limit time.Duration, order uint64) (*team, error) {
	if limit == 0 {
		limit = patience
	}
	lanes := plan
	lanes.Pipe = plan.lanes(folded)
	m := Mesh{Plan: lanes}
	n := lanes.Ranks()
	ends := make([][axisCount]Comm, n)
	for a := range axisCount {
		for r := range n {
			ranks, at := m.along(a, m.At(r))
			if at != 0 {
				continue
			}
			for i, c := range NewLocal(a.String(), len(ranks), 2*limit) {
				ends[ranks[i]][a] = c
			}
		}
	}
	t := &team{plan: plan, mesh: m, group: NewGroup(nil), watch: watchdog{limit: limit}, ended: make(chan struct{}), baton: newBaton(order)}
	if t.baton != nil {
		t.baton.stuck = t.deadlock
	}
	stores := make([]*skipStore, n)
	for r := range n {
		if c := m.At(r); c.Pipe >= plan.Pipe { // an up lane shares the store of its down lane
			c.Pipe = lanes.Pipe - 1 - c.Pipe
			stores[r] = stores[m.Rank(c)]
		} else {
			stores[r] = newSkipStore()
		}
		ops, err := newOps(r, plan.Ranks())
		if err != nil {
			t.close()
			return nil, fmt.Errorf("start rank %d: %w", r, err)
		}
		l := &rankLink{rank: newRank(r, ops, ends[r], stores[r], weights), inbox: make(chan rankCall, queueLength), recode: recode}
		l.rank.baton = t.baton
		for _, c := range ends[r] {
			c.(*LocalComm).hub.baton = t.baton
		}
		t.links = append(t.links, l)
		name := fmt.Sprintf("rank %d", r)
		seat := t.baton.join(name)
		t.group.Go(name, func() error {
			t.baton.start(seat)
			defer t.baton.leave(seat)
			l.rank.serve(l.inbox)
			return nil
		})
	}
	return t, nil
}

// close ends the ranks after the work in hand. It does not wait for a rank that hangs: ended tells when that one has returned after all.
func (t *team) close() {
	for _, l := range t.links {
		l.rank.closing.Store(true)
		close(l.inbox)
	}
	t.baton.kick()
	wait := func() error {
		_ = t.group.Wait() // serve has no error of its own
		close(t.ended)
		return nil
	}
	if t.left.Load() {
		NewGroup(nil).Go("end of a rank that hangs", wait)
		return
	}
	_ = wait()
}

// all queues cut(rank) on every rank for which it is not nil and returns a function that waits for the replies, by rank. The first error that is not
// the echo of another rank's failure wins.
func (t *team) all(cut func(rank int) *Command) func() ([]Reply, error) {
	waits := make([]func() (Reply, error), len(t.links))
	errs := make([]error, len(t.links))
	for r, l := range t.links {
		if c := cut(r); c != nil {
			waits[r], errs[r] = l.send(*c, t.await)
		}
	}
	return func() ([]Reply, error) {
		replies := make([]Reply, len(t.links))
		var first error
		for r, wait := range waits {
			if wait != nil {
				replies[r], errs[r] = wait()
			}
			if errs[r] == nil {
				continue
			}
			if e := asError(errs[r]); first == nil || asError(first).Code == PeerLost && e.Code != PeerLost {
				first = e
			}
		}
		return replies, first
	}
}

// open starts a session on all ranks and returns the largest memory need.
func (t *team) open(session uint64, spec *dit.Spec, o OpenCommand, branches []int) (int64, error) {
	p := t.mesh.Plan
	t.batch = balanced(o.Batch, p.Data)
	t.cfgOf, t.entries = make([]int, len(o.Entries)), nil
	token := spec.PatchSize * spec.PatchSize
	t.features.in, t.features.out = spec.Channels*token, spec.OutChannels*token
	for i, e := range o.Entries {
		t.cfgOf[i] = cfgGroup(branches, i, p.CFG)
		lt := 0
		if spec.JointText() {
			lt = e.Entry.Context.Rows
		}
		t.entries = append(t.entries, entrySize{lt, e.Grid.Tokens()})
	}
	replies, err := t.all(func(rank int) *Command {
		c := t.mesh.At(rank)
		own := o
		own.Model = heldKey(o.Model, p.held(c))
		own.Batch = t.batch[c.Data].Len()
		own.Entries = make([]EntryInput, len(o.Entries))
		for i, e := range o.Entries {
			own.Entries[i] = e
			if t.cfgOf[i] != c.CFG {
				own.Entries[i] = EntryInput{Grid: e.Grid, Foreign: true}
			}
		}
		return &Command{Session: session, Open: &own}
	})()
	var peak int64
	for _, r := range replies {
		peak = max(peak, r.PeakBytes)
	}
	return peak, err
}

// cfgGroup spreads entries over cfg groups: branches in turn, and the entries of one branch in turn where there are more groups than branches.
func cfgGroup(branches []int, i, groups int) int {
	last := 0
	for _, b := range branches {
		last = max(last, b)
	}
	if groups <= last+1 {
		return branches[i] % groups
	}
	return i % groups
}

// begin queues one evaluation and returns a function that waits for its result. Inputs are rows [B, tokens, in] of each entry, results [B, tokens, out].
func (t *team) begin(session uint64, c EvaluateCommand) func() ([][]float32, error) {
	p := t.mesh.Plan
	total := t.batch[len(t.batch)-1].End
	spread, parts := c.Whole && p.Spread, p.Ring*p.Ulysses
	if spread {
		parts *= p.Pipe
	}
	places := make([][]dit.Rows, len(c.Entries)) // by entry and place of the sequence
	for k, e := range c.Entries {
		places[k] = c.rows(t.entries[e], parts)
	}
	place := func(at Coord) int {
		if spread {
			return at.Pipe*p.Ring*p.Ulysses + at.sequence(p)
		}
		return at.sequence(p)
	}
	rows := func(k int, at Coord) dit.Range { // counted from the first token of the evaluation
		r := p.kept(places[k][place(at)], at.Tensor).Image
		if !c.Whole {
			r.Start, r.End = r.Start-c.Tokens.Start, r.End-c.Tokens.Start
		}
		return r
	}
	wait := t.all(func(rank int) *Command {
		at := t.mesh.At(rank)
		own := c
		own.Entries, own.Inputs = nil, nil
		for k, e := range c.Entries {
			if t.cfgOf[e] != at.CFG {
				continue
			}
			own.Entries = append(own.Entries, e)
			if at.Pipe == 0 || spread {
				own.Inputs = append(own.Inputs, cutRows(c.Inputs[k], total, t.batch[at.Data], rows(k, at), t.features.in))
			}
		}
		if len(own.Entries) == 0 && !p.Shard { // with nothing to compute it still gives its part of the weights
			return nil
		}
		return &Command{Session: session, Evaluate: &own}
	})
	return func() ([][]float32, error) {
		replies, err := wait()
		if err != nil {
			return nil, err
		}
		out := make([][]float32, len(c.Entries))
		for k := range out {
			out[k] = make([]float32, len(c.Inputs[k])/t.features.in*t.features.out)
		}
		for rank := range t.links {
			at := t.mesh.At(rank)
			i := 0
			for k, e := range c.Entries {
				if t.cfgOf[e] == at.CFG && (at.Pipe == p.Pipe-1 || spread) && (at.Tensor == 0 || p.Scatter) {
					pasteRows(out[k], total, replies[rank].Outputs[i], t.batch[at.Data], rows(k, at), t.features.out)
					i++
				}
			}
		}
		return out, nil
	}
}

// cutRows takes items and rows out of [B, L, F]; the whole is returned as it is.
func cutRows(v []float32, b int, items, rows dit.Range, f int) []float32 {
	l := len(v) / b / f
	if items.Len() == b && rows.Len() == l {
		return v
	}
	out := make([]float32, 0, items.Len()*rows.Len()*f)
	for i := items.Start; i < items.End; i++ {
		out = append(out, v[(i*l+rows.Start)*f:(i*l+rows.End)*f]...)
	}
	return out
}

// pasteRows is the inverse of cutRows.
func pasteRows(v []float32, b int, part []float32, items, rows dit.Range, f int) {
	l, n := len(v)/b/f, rows.Len()*f
	for i := range items.Len() {
		at := ((items.Start+i)*l + rows.Start) * f
		copy(v[at:at+n], part[i*n:(i+1)*n])
	}
}

// end closes the session on all ranks and adds what each of them sent and computed to stats.
func (t *team) end(session uint64, stats *Stats) {
	replies, err := t.all(func(int) *Command { return &Command{Session: session, Close: true} })()
	if err != nil {
		return
	}
	n := t.plan.Ranks()
	stats.Traffic, stats.Tokens = make([][]Traffic, n), make([]TokenCount, n)
	for i, r := range replies {
		at, down := t.device(i)
		if stats.Traffic[at] == nil {
			stats.Traffic[at] = make([]Traffic, len(r.Traffic))
		}
		for a, v := range r.Traffic {
			sum := &stats.Traffic[at][a]
			sum.Calls, sum.Bytes, sum.Wait = sum.Calls+v.Calls, sum.Bytes+v.Bytes, sum.Wait+v.Wait
			sum.Posted += v.Posted
		}
		if down { // a token goes through both lanes of a folded stage and is counted once
			stats.Tokens[at] = r.Tokens
		}
		stats.Spans = append(stats.Spans, r.Spans...)
	}
}

// device returns the rank of the plan that a member of the team belongs to, and whether it is the lane on which micro-steps come to that rank first:
// folded stages have two members, one for the way down and one for the way up.
func (t *team) device(member int) (rank int, down bool) {
	c := t.mesh.At(member)
	down = c.Pipe < t.plan.Pipe
	if !down {
		c.Pipe = t.mesh.Plan.Pipe - 1 - c.Pipe
	}
	return Mesh{Plan: t.plan}.Rank(c), down
}

// cancel stops the session's evaluation on all ranks before their next block.
func (t *team) cancel(session uint64) {
	for _, l := range t.links {
		l.rank.cancel(session)
	}
}
