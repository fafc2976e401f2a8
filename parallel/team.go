package parallel

import (
	"fmt"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/models/dit"
)

// team is the ranks of one plan, as the leader sees them: it cuts commands for each of them and puts their answers together.
type team struct {
	mesh  Mesh
	links []*rankLink
	group *Group
	// cfgOf and rowsOf are fixed when a session opens.
	batch    []dit.Range // items of each data part
	cfgOf    []int       // cfg group of each entry
	rowsOf   [][]dit.Rows
	features struct{ in, out int }
}

// rendezvous is how long a rank waits for a peer before the request fails and names both.
const rendezvous = 2 * time.Minute

// newTeam starts the ranks of a plan.
func newTeam(plan Plan, newOps func(rank, ranks int) (engine.Ops, error), weights func(string) (dit.Model, bool), recode func(any) (any, error)) (*team, error) {
	m := Mesh{Plan: plan}
	n := plan.Ranks()
	ends := make([][axisCount]Comm, n)
	for a := range axisCount {
		for r := range n {
			ranks, at := m.along(a, m.At(r))
			if at != 0 {
				continue
			}
			for i, c := range NewLocal(a.String(), len(ranks), rendezvous) {
				ends[ranks[i]][a] = c
			}
		}
	}
	t := &team{mesh: m, group: NewGroup(nil)}
	for r := range n {
		ops, err := newOps(r, n)
		if err != nil {
			t.close()
			return nil, fmt.Errorf("start rank %d: %w", r, err)
		}
		l := &rankLink{rank: newRank(r, ops, ends[r], weights), inbox: make(chan rankCall), recode: recode}
		t.links = append(t.links, l)
		t.group.Go(fmt.Sprintf("rank %d", r), func() error { l.rank.serve(l.inbox); return nil })
	}
	return t, nil
}

// close ends the ranks after the work in hand.
func (t *team) close() {
	for _, l := range t.links {
		close(l.inbox)
	}
	_ = t.group.Wait() // serve has no error of its own
}

// all sends make(rank) to every rank for which it is not nil, at the same time, and returns the replies by rank. The first error that is not the
// echo of another rank's failure wins.
func (t *team) all(cut func(rank int) *Command) ([]Reply, error) {
	replies := make([]Reply, len(t.links))
	errs := make([]error, len(t.links))
	var wg sync.WaitGroup
	for r, l := range t.links {
		c := cut(r)
		if c == nil {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[r] = Recovered(fmt.Sprintf("link to rank %d", r), func() error {
				var err error
				replies[r], err = l.call(*c)
				return err
			})
		}()
	}
	wg.Wait()
	var first error
	for _, err := range errs {
		if err == nil {
			continue
		}
		if e := asError(err); first == nil || asError(first).Code == PeerLost && e.Code != PeerLost {
			first = e
		}
	}
	return replies, first
}

// open starts a session on all ranks and returns the largest memory need.
func (t *team) open(session uint64, spec *dit.Spec, o OpenCommand, branches []int) (int64, error) {
	p := t.mesh.Plan
	t.batch = balanced(o.Batch, p.Data)
	t.cfgOf, t.rowsOf = make([]int, len(o.Entries)), make([][]dit.Rows, len(o.Entries))
	token := spec.PatchSize * spec.PatchSize
	t.features.in, t.features.out = spec.Channels*token, spec.OutChannels*token
	for i, e := range o.Entries {
		t.cfgOf[i] = cfgGroup(branches, i, p.CFG)
		lt := 0
		if spec.JointText() {
			lt = e.Entry.Context.Rows
		}
		t.rowsOf[i] = sequenceRows(lt, e.Grid.Tokens(), p.Ring*p.Ulysses)
	}
	replies, err := t.all(func(rank int) *Command {
		c := t.mesh.At(rank)
		own := o
		own.Model = heldKey(o.Model, p.held(c.Tensor))
		own.Batch = t.batch[c.Data].Len()
		own.Entries = make([]EntryInput, len(o.Entries))
		for i, e := range o.Entries {
			own.Entries[i] = e
			if t.cfgOf[i] != c.CFG {
				own.Entries[i] = EntryInput{Grid: e.Grid, Foreign: true}
			}
		}
		return &Command{Session: session, Open: &own}
	})
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

// evaluate runs one evaluation: inputs are rows [B, Li, in] of each entry, results rows [B, Li, out].
func (t *team) evaluate(session uint64, c EvaluateCommand) ([][]float32, error) {
	p := t.mesh.Plan
	total := t.batch[len(t.batch)-1].End
	replies, err := t.all(func(rank int) *Command {
		at := t.mesh.At(rank)
		own := EvaluateCommand{Index: c.Index, Timestep: c.Timestep}
		for k, e := range c.Entries {
			if t.cfgOf[e] == at.CFG {
				own.Entries = append(own.Entries, e)
				own.Inputs = append(own.Inputs, cutRows(c.Inputs[k], total, t.batch[at.Data], t.rowsOf[e][at.sequence(p)].Image, t.features.in))
			}
		}
		if len(own.Entries) == 0 {
			return nil
		}
		return &Command{Session: session, Evaluate: &own}
	})
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
			if t.cfgOf[e] == at.CFG {
				pasteRows(out[k], total, replies[rank].Outputs[i], t.batch[at.Data], t.rowsOf[e][at.sequence(p)].Image, t.features.out)
				i++
			}
		}
	}
	return out, nil
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

// end closes the session on all ranks and returns what each sent, by axis.
func (t *team) end(session uint64) [][]Traffic {
	replies, err := t.all(func(int) *Command { return &Command{Session: session, Close: true} })
	if err != nil {
		return nil
	}
	out := make([][]Traffic, len(replies))
	for r := range replies {
		out[r] = replies[r].Traffic
	}
	return out
}

// cancel stops the session's evaluation on all ranks before their next block.
func (t *team) cancel(session uint64) {
	for _, l := range t.links {
		l.rank.cancel(session)
	}
}
