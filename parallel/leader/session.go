package leader

import (
	"slices"
	"sync"

	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
)

// Session is one request on a team, as the leader sees it.
type Session struct {
	team     *Team
	id       uint64
	batch    []dit.Range // items of each data part
	cfgOf    []int       // cfg group of each entry
	entries  []plan.Sequence
	alike    []int // by entry: tokens behind those that are split, which every rank of a sequence computes
	Features struct{ in, Out int }
	Nets     bool // entries have control nets
	Merged   int  // entries that the ranks of a cfg group evaluate as one batch; 1: one by one

	mu   sync.Mutex
	sent map[int][]comm.Traffic // by member: what it has sent so far, from its last reply
}

// NewSession makes a session that Open then starts on the ranks. id differs from those of all other sessions and tasks
// of the team.
func NewSession(t *Team, id uint64) *Session { return &Session{team: t, id: id} }

// note records what the members have sent so far.
func (s *Session) note(replies []rank.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil {
		s.sent = map[int][]comm.Traffic{}
	}
	for member, r := range replies {
		if r.Traffic != nil {
			s.sent[member] = r.Traffic
		}
	}
}

// Bytes adds up what all members have sent so far, by axis.
func (s *Session) Bytes() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]int64, plan.AxisCount)
	for _, traffic := range s.sent {
		for a, t := range traffic {
			out[a] += t.Bytes
		}
	}
	return out
}

// Open starts the session on all ranks and returns the bytes of the rank that needs most; a folded stage counts both of
// its lanes.
func (s *Session) Open(spec *dit.Spec, o rank.OpenCommand, branches []int) (peak int64, err error) {
	t, p := s.team, s.team.Mesh.Plan
	s.batch = t.Plan.Items(o.Batch)
	s.cfgOf, s.entries, s.alike = make([]int, len(o.Entries)), nil, nil
	s.Features.in, s.Features.Out = spec.FeaturesIn(), spec.FeaturesOut()
	for i, e := range o.Entries {
		s.cfgOf[i] = plan.CFGCoord(branches, i, p.CFG)
		lt := 0
		if spec.JointText() {
			lt = spec.JointTokens(&e.Entries[0])
		}
		s.entries = append(s.entries, plan.Sequence{Text: lt, Image: spec.Split(e.Grid)})
		s.alike = append(s.alike, spec.Alike(e.Grid))
	}
	replies, err := t.All(func(at int) *rank.Command {
		c := t.Mesh.At(at)
		open := o
		device, _ := t.Device(at)
		open.Model = plan.HeldKey(o.Model, t.Plan.Held(o.Lanes, plan.Mesh{Plan: t.Plan}.At(device)))
		open.Batch = s.batch[c.Data].Len()
		open.Entries = make([]rank.EntryInput, len(o.Entries))
		for i, e := range o.Entries {
			open.Entries[i] = e
			if s.cfgOf[i] != c.CFG {
				open.Entries[i] = rank.EntryInput{Grid: e.Grid, Foreign: true}
				continue
			}
			open.Entries[i].Residuals = s.residuals(e.Residuals, i, o, c)
			open.Entries[i].Control = slices.Clone(e.Control)
			for k := range e.Control {
				if net := &open.Entries[i].Control[k]; !net.Patch {
					net.Model = plan.HeldKey(net.Model, t.Plan.BesideHeld(c.Tensor))
					net.Entry.Hint = s.hints(net.Entry.Hint, e.Grid.Tokens(), c)
				}
			}
		}
		if s.Merged > 1 {
			open.Batch *= s.Merged
			open.Entries = s.merge(open.Entries, p.CFG)
		}
		return &rank.Command{Session: s.id, Open: &open}
	})()
	need := make([]int64, t.Plan.Ranks())
	for member, r := range replies {
		device, _ := t.Device(member)
		need[device] += r.PeakBytes
		peak = max(peak, need[device])
	}
	if err == nil { // each lane has checked only its own memory
		err = o.Fits(peak)
	}
	return peak, err
}

// merge combines the entries of each cfg group into one.
func (s *Session) merge(entries []rank.EntryInput, groups int) []rank.EntryInput {
	out := make([]rank.EntryInput, groups)
	for i, e := range entries {
		all := &out[s.cfgOf[i]]
		e.Entries = append(all.Entries, e.Entries...)
		*all = e
	}
	return out
}

// hints returns the hints for the items of the member at c; a single hint for all items is returned as it is.
func (s *Session) hints(all dit.Array, tokens int, c plan.Coord) dit.Array {
	if b := all.Rows / tokens; b > 1 {
		all.Data = rank.CutRows(all.Data, b, s.batch[c.Data], all.Cols, dit.Range{End: tokens})
		all.Rows = s.batch[c.Data].Len() * tokens
	}
	return all
}

// residuals returns the residuals of entry i that the member at c adds: for its blocks, its items and its rows.
func (s *Session) residuals(all []rank.Residual, i int, o rank.OpenCommand, c plan.Coord) (parts []rank.Residual) {
	p, size := s.team.Mesh.Plan, s.entries[i]
	rows := rank.Own(p, size, c.SequenceRank(p), c.Tensor)
	for _, r := range all {
		blocks := r.Blocks
		if len(o.Lanes) > 0 && !p.Spread {
			blocks = slices.DeleteFunc(slices.Clone(blocks), func(b int) bool { return !o.Lanes[c.Pipe].Has(b) })
		}
		if len(blocks) > 0 {
			width := len(r.Rows) / o.Batch / size.Image
			part := rank.CutRows(r.Rows, o.Batch, s.batch[c.Data], width, rows)
			parts = append(parts, rank.Residual{Blocks: blocks, Rows: part})
		}
	}
	return parts
}

// Begin queues one evaluation and returns a function that waits for its result. Inputs are rows [B, tokens, in] of each
// entry, results [B, tokens, out].
func (s *Session) Begin(c rank.EvaluateCommand) func() ([][]float32, error) {
	t, p := s.team, s.team.Mesh.Plan
	total := s.batch[len(s.batch)-1].End
	spread := c.Whole && p.Spread
	shares := t.Plan.Places(spread)
	places := make([][]dit.Rows, len(c.Entries)) // by entry and place in the sequence
	for k, e := range c.Entries {
		places[k] = c.Rows(s.entries[e], shares)
	}
	place := func(at plan.Coord) int {
		if spread {
			return at.Pipe*p.Ring*p.Ulysses + at.SequenceRank(p)
		}
		return at.SequenceRank(p)
	}
	first := func(at plan.Coord) bool { return at.Pipe == 0 || spread && at.Pipe < t.Mesh.StageCount() }
	last := func(at plan.Coord) bool {
		return at.Pipe == p.Pipe-1 && !spread || spread && at.Pipe < t.Mesh.StageCount()
	}
	rows := func(k int, at plan.Coord) dit.Range { // counted from the first token of the evaluation
		r := p.Kept(places[k][place(at)], at.Tensor).Image
		if !c.Whole {
			r.Start, r.End = r.Start-c.Tokens.Start, r.End-c.Tokens.Start
		}
		return r
	}
	wait := t.All(func(member int) *rank.Command {
		at := t.Mesh.At(member)
		if spread && !first(at) {
			return nil
		}
		cut := func(v []float32, r, alike dit.Range) []float32 {
			return rank.CutRows(v, total, s.batch[at.Data], s.Features.in, r, alike)
		}
		evaluate := c
		evaluate.Entries, evaluate.Inputs, evaluate.Latents = nil, nil, nil
		for k, e := range c.Entries {
			if s.cfgOf[e] != at.CFG {
				continue
			}
			evaluate.Entries = append(evaluate.Entries, e)
			if c.Latents != nil {
				seen := dit.Range{End: s.entries[e].Image}
				if p.Pipe == 1 {
					seen = places[k][place(at)].Image
				}
				evaluate.Latents = append(evaluate.Latents, cut(c.Latents[k], seen, dit.Range{}))
			}
			if first(at) {
				evaluate.Inputs = append(evaluate.Inputs, cut(c.Inputs[k], rows(k, at), s.alikeRows(e)))
			}
		}
		if s.Merged > 1 && len(evaluate.Entries) > 0 { // all entries read the same rows, even those not asked for now
			evaluate.Entries = []int{at.CFG}
			if first(at) {
				evaluate.Inputs = []dit.Floats{slices.Repeat(evaluate.Inputs[0], s.Merged)}
			}
		}
		if len(evaluate.Entries) == 0 && p.Parts() == 1 { // else it must join gathers of weights
			return nil
		}
		return &rank.Command{Session: s.id, Evaluate: &evaluate}
	})
	return func() ([][]float32, error) {
		replies, err := wait()
		if err != nil {
			return nil, err
		}
		s.note(replies)
		out := make([][]float32, len(c.Entries))
		for k := range out {
			out[k] = make([]float32, len(c.Inputs[k])/s.Features.in*s.Features.Out)
		}
		for rank := range t.Members {
			at := t.Mesh.At(rank)
			i := 0
			for k, e := range c.Entries {
				if s.cfgOf[e] == at.CFG && last(at) && (at.Tensor == 0 || p.Scatter) {
					pasteRows(out[k], total, s.output(replies[rank].Outputs, i, e), s.batch[at.Data], s.Features.Out, rows(k, at),
						s.alikeRows(e))
					i++
				}
			}
		}
		return out, nil
	}
}

// output returns what a rank computed for an entry, the i-th of those that it was asked for.
func (s *Session) output(all []dit.Floats, i, entry int) []float32 {
	if s.Merged == 1 {
		return all[i]
	}
	at := 0 // among the entries of the cfg group
	for _, group := range s.cfgOf[:entry] {
		if group == s.cfgOf[entry] {
			at++
		}
	}
	n := len(all[0]) / s.Merged
	return all[0][at*n : (at+1)*n]
}

// pasteRows is the inverse of rank.CutRows.
func pasteRows(v []float32, b int, part []float32, items dit.Range, f int, rows ...dit.Range) {
	l := len(v) / b / f
	for i := range items.Len() {
		for _, r := range rows {
			n := copy(v[((items.Start+i)*l+r.Start)*f:((items.Start+i)*l+r.End)*f], part)
			part = part[n:]
		}
	}
}

// alikeRows returns the tokens of an entry that every rank of a sequence computes. Where there are some, all tokens are
// evaluated at once.
func (s *Session) alikeRows(entry int) dit.Range {
	if s.alike[entry] == 0 {
		return dit.Range{}
	}
	n := s.entries[entry].Image
	return dit.Range{Start: n, End: n + s.alike[entry]}
}

// Close ends the session on all ranks and adds what each of them sent and computed to stats.
func (s *Session) Close(stats *request.Stats) error {
	t := s.team
	replies, err := t.All(func(int) *rank.Command { return &rank.Command{Session: s.id, Close: true} })()
	if err != nil {
		return err
	}
	n := t.Plan.Ranks()
	stats.Traffic, stats.Tokens = make([][]comm.Traffic, n), make([]rank.TokenCount, n)
	for i, r := range replies {
		at, down := t.Device(i)
		if stats.Traffic[at] == nil {
			stats.Traffic[at] = make([]comm.Traffic, len(r.Traffic))
		}
		for a, v := range r.Traffic {
			stats.Traffic[at][a].Add(v)
		}
		if down { // a token goes through both lanes of a folded stage and is counted once
			stats.Tokens[at] = r.Tokens
		}
		stats.Spans = append(stats.Spans, r.Spans...)
		for way, n := range r.Chosen {
			if stats.Chosen == nil {
				stats.Chosen = map[string]int64{}
			}
			stats.Chosen[way] += n
		}
	}
	return nil
}

// Cancel stops the session's evaluations on all ranks before their next block, if exchanges can be interrupted.
// Otherwise the samplers ask for no more evaluations, and what is queued runs to its end.
func (s *Session) Cancel() {
	if !s.team.Interruptible {
		return
	}
	for _, l := range s.team.Members {
		l.Cancel(s.id)
	}
}
