package parallel

import (
	"patchbay/engine"
	"patchbay/parallel/comm"
)

// postsAhead is how many micro-steps a stage posts receives for before it needs them.
const postsAhead = 2

// inbound is where rows from the stage before arrive: memory for a few micro-steps, posted as soon as their commands are there, so that the sender
// does not wait until this stage has finished what it does. A nil inbound receives when rows are needed (first stage, whole pictures, overlap=off).
type inbound struct {
	pipe  comm.Comm
	slots [postsAhead][]engine.Tensor // by entry: values of the largest patch
	ahead []Micro                     // posted, oldest first
	next  int                         // slot of the next post
}

// newInbound takes memory for entries of the given numbers of values.
func newInbound(pipe comm.Comm, arena *engine.Arena, t engine.DType, values []int) *inbound {
	in := &inbound{pipe: pipe}
	for i := range in.slots {
		for _, n := range values {
			in.slots[i] = append(in.slots[i], arena.Alloc(t, n))
		}
	}
	return in
}

// full tells that nothing more can be posted.
func (in *inbound) full() bool { return len(in.ahead) == postsAhead }

// post offers memory for the rows of a micro-step: values[k] of its k-th entry.
func (in *inbound) post(m Micro, entries, values []int) {
	for k, e := range entries {
		in.pipe.Post(in.slots[in.next][e].Slice(0, 0, values[k]), in.pipe.Rank()-1)
	}
	in.ahead, in.next = append(in.ahead, m), (in.next+1)%postsAhead
}

// receive fills x with the rows of the k-th of n entries of a micro-step.
func (in *inbound) receive(ops engine.Ops, pipe comm.Comm, x engine.Tensor, entry int, last bool) {
	from := pipe.Rank() - 1
	if in == nil || len(in.ahead) == 0 {
		pipe.SendRecv(x, from, engine.Tensor{}, -1)
		return
	}
	slot := (in.next + postsAhead - len(in.ahead)) % postsAhead
	in.pipe.Await(from)
	ops.Copy(x, in.slots[slot][entry].Slice(0, 0, x.Len()).Split(0, x.Dim(0), x.Dim(1), x.Dim(2)))
	if last {
		in.ahead = in.ahead[1:]
	}
}

// largestPatch is the values [B, L/P, E] that a stage receives of each entry at most in one micro-step of a patch.
func (s *rankSession) largestPatch() []int {
	out := make([]int, len(s.entries))
	for m, tokens := range patchRanges(s.open.Text, s.entries[0].grid.Tokens(), s.open.Plan.Patches) {
		c := EvaluateCommand{Patch: m, Tokens: tokens, Text: m == 0}
		for i := range s.entries {
			out[i] = max(out[i], s.values(&c, i))
		}
	}
	return out
}

// values counts what a micro-step passes from stage to stage of one entry.
func (s *rankSession) values(c *EvaluateCommand, entry int) int {
	e := &s.entries[entry]
	if e.p == nil {
		return 0
	}
	ulysses, ring := s.comms[AxisUlysses], s.comms[AxisRing]
	rows := c.rows(entrySize{s.textOf(e.p), e.grid.Tokens()}, ulysses.Size()*ring.Size())[ring.Rank()*ulysses.Size()+ulysses.Rank()]
	return s.open.Batch * s.open.Plan.kept(rows, s.comms[AxisTensor].Rank()).Len() * s.model.Spec().Width
}

// lookAhead posts receives for commands that wait already.
func (s *rankSession) lookAhead() {
	if s.in == nil || s.peek == nil {
		return
	}
	for i := len(s.in.ahead); !s.in.full(); i++ {
		c := s.peek(i)
		if c == nil || c.Session != s.id || c.Evaluate == nil || c.Evaluate.Whole {
			return
		}
		values := make([]int, len(c.Evaluate.Entries))
		for k, e := range c.Evaluate.Entries {
			values[k] = s.values(c.Evaluate, e)
		}
		s.in.post(c.Evaluate.micro(), c.Evaluate.Entries, values)
	}
}

// postedBuffers adds the memory of inbound to the buffers of lane k of rank c.
func (o *outline) postedBuffers(s *stack, c Coord, k, b int) {
	if k == 0 || len(o.patches) == 1 || !o.plan.Overlap {
		return
	}
	for range postsAhead {
		for i := range o.Text {
			most := 0
			for j := range o.patches {
				if o.cfgOf[i] == c.CFG {
					most = max(most, o.plan.kept(o.rows(Micro{Patch: j}, i)[c.sequence(o.plan)], c.Tensor).Len())
				}
			}
			s.alloc(b * most * o.Spec.Width)
		}
	}
}

// peekable keeps calls that have been looked at before their turn.
type peekable struct {
	inbox <-chan rankCall
	ahead []rankCall
	ended bool // the inbox is closed
}

// next takes the oldest call; ok is false when there is none and will be none.
func (p *peekable) next() (call rankCall, ok bool) {
	if len(p.ahead) > 0 {
		call, p.ahead = p.ahead[0], p.ahead[1:]
		return call, true
	}
	if p.ended {
		return call, false
	}
	call, ok = <-p.inbox
	return call, ok
}

// peek returns the i-th call that waits, nil if there is none yet.
func (p *peekable) peek(i int) *Command {
	for len(p.ahead) <= i && !p.ended {
		select {
		case call, ok := <-p.inbox:
			if !ok {
				p.ended = true
				return nil
			}
			p.ahead = append(p.ahead, call)
		default:
			return nil
		}
	}
	if i >= len(p.ahead) {
		return nil
	}
	return &p.ahead[i].command
}
