package rank

import (
	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// slots is memory for the rows of a few micro-steps, used in turn: by micro-step and entry, values of the largest
// patch.
type slots struct {
	of   [plan.PostsAhead][]engine.Tensor
	next int // index into of for the next micro-step
}

func newSlots(arena *engine.Arena, t engine.DType, values []int) *slots {
	s := &slots{}
	for i := range s.of {
		for _, n := range values {
			s.of[i] = append(s.of[i], arena.Alloc(t, n))
		}
	}
	return s
}

// advance returns the slots for the next micro-step.
func (s *slots) advance() []engine.Tensor {
	out := s.of[s.next]
	s.next = (s.next + 1) % plan.PostsAhead
	return out
}

// stageExchange moves the rows of patches from stage to stage beside computation: receives are posted as soon as their
// commands are there, and rows to be sent are copied to slots, so that no stage stalls while its neighbor computes.
// Whole pictures, and everything with overlap=off, use SendRecv when they are needed.
type stageExchange struct {
	pipe    comm.Comm
	in, out *slots // nil: SendRecv
	posted  int    // micro-steps whose receives are posted
}

// newStageExchange allocates slots for entries of the given numbers of values; nil: no slots.
func newStageExchange(pipe comm.Comm, arena *engine.Arena, t engine.DType, values []int) *stageExchange {
	l := &stageExchange{pipe: pipe}
	if values != nil && pipe.Rank() > 0 {
		l.in = newSlots(arena, t, values)
	}
	if values != nil && pipe.Rank() < pipe.Size()-1 {
		l.out = newSlots(arena, t, values)
	}
	return l
}

// post posts receives for the rows of a micro-step, values[k] of its k-th entry.
func (l *stageExchange) post(entries, values []int) {
	slots := l.in.advance()
	for k, e := range entries {
		l.pipe.Post(slots[e].Slice(0, 0, values[k]), l.pipe.Rank()-1)
	}
	l.posted++
}

// receive fills the rows of all entries of a micro-step.
func (l *stageExchange) receive(whole bool, entries []int, rows []engine.Tensor) {
	from := l.pipe.Rank() - 1
	if l.in == nil || whole {
		for _, x := range rows {
			l.pipe.SendRecv(x, from, engine.Tensor{}, -1)
		}
		return
	}
	if l.posted == 0 {
		values := make([]int, len(rows))
		for k, x := range rows {
			values[k] = x.Len()
		}
		l.post(entries, values)
	}
	for _, x := range rows {
		l.pipe.Await(x, from)
	}
	l.posted--
}

// send sends the rows of all entries of a micro-step to the next stage.
func (l *stageExchange) send(whole bool, entries []int, rows []engine.Tensor) {
	to := l.pipe.Rank() + 1
	if l.out == nil || whole {
		for _, x := range rows {
			l.pipe.SendRecv(engine.Tensor{}, -1, x, to)
		}
		return
	}
	slots := l.out.advance()
	for k, x := range rows {
		l.pipe.Offer(slots[entries[k]].Slice(0, 0, x.Len()), x, to)
	}
}
