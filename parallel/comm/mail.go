package comm

import (
	"fmt"
	"strings"

	"patchbay/engine"
)

// Message is one side of a transfer from one rank to another.
type Message struct {
	Tensor engine.Tensor
	Site   Site
}

// NewMessage is t with the place of the code that called a method of Comm.
func NewMessage(t engine.Tensor) Message { return Message{t, caller(2)} }

// Agree refuses a message from one rank to another whose sides differ in count or dtype; name is the group's.
func Agree(name string, dst Message, to int, src Message, from int) error {
	if src.Tensor.Len() != dst.Tensor.Len() || src.Tensor.DType != dst.Tensor.DType {
		return &Error{Text: fmt.Sprintf("%s: rank %d sends %s at %s, rank %d receives %s at %s",
			name, from, src.Tensor, src.Site, to, dst.Tensor, dst.Site)}
	}
	return nil
}

// Side is one side of a message that a rank has come with, and what the transport notes of it.
type Side[T any] struct {
	Message
	Met  bool // with the other side
	Note T
}

// NewSide is a side of t with the place of the code that called a method of Comm.
func NewSide[T any](t engine.Tensor) *Side[T] { return &Side[T]{Message: Message{t, caller(2)}} }

// Mail matches the messages of a group, those between two ranks in the order in which either comes with its sides: what
// SendRecv sends with what it receives, offers with posts. The group's lock is held in all methods. Errors name the
// calls of both ranks.
type Mail[T any] struct {
	Name string // of the group
	// Move, if not nil, moves a message whose sides have met and agree.
	Move func(from, to int, out, in *Side[T]) error
	// Elsewhere, if not nil, reports whether a rank is in another process, which says nothing of its sides: those that
	// they would meet are forgotten.
	Elsewhere func(rank int) bool

	ways map[[2]int]*way[T]
}

// way is the sides of messages from one rank to another, oldest first: those that have not met, and posted memory that
// was not awaited yet.
type way[T any] struct{ sends, receives, offers, posts, posted []*Side[T] }

func (m *Mail[T]) way(from, to int) *way[T] {
	if m.ways == nil {
		m.ways = map[[2]int]*way[T]{}
	}
	key := [2]int{from, to}
	if m.ways[key] == nil {
		m.ways[key] = &way[T]{}
	}
	return m.ways[key]
}

// refuse is the error of ranks that do not use the same calls.
func (m *Mail[T]) refuse(format string, args ...any) error {
	return &Error{Text: m.Name + ": " + fmt.Sprintf(format, args...)}
}

// Send comes with what SendRecv sends.
func (m *Mail[T]) Send(from, to int, out *Side[T]) error {
	w := m.way(from, to)
	if len(w.posts) > 0 {
		return m.refuse("rank %d sends to rank %d at %s, which has posted memory at %s: that takes an Offer", from, to,
			out.Site, w.posts[0].Site)
	}
	w.sends = append(w.sends, out)
	return m.match(from, to, &w.sends, &w.receives)
}

// Receive comes with memory for what SendRecv receives.
func (m *Mail[T]) Receive(from, to int, in *Side[T]) error {
	w := m.way(from, to)
	if len(w.posted) > 0 {
		return m.refuse("rank %d receives from rank %d at %s and has posted memory for it before", to, from, in.Site)
	}
	w.receives = append(w.receives, in)
	return m.match(from, to, &w.sends, &w.receives)
}

// Swap is SendRecv of a rank with these sides, as far as the host is concerned: it waits until both have met.
func (m *Mail[T]) Swap(s *Seat, in *Side[T], from int, out *Side[T], to int) error {
	if to >= 0 {
		if err := m.Send(s.rank, to, out); err != nil {
			return err
		}
	}
	if from >= 0 {
		if err := m.Receive(from, s.rank, in); err != nil {
			return err
		}
		if err := Meet(s, in, fmt.Sprintf("a send of rank %d", from)); err != nil {
			return err
		}
	}
	if to >= 0 {
		return Meet(s, out, fmt.Sprintf("rank %d to receive", to))
	}
	return nil
}

// Meet waits until a side has met the other one.
func Meet[T any](s *Seat, side *Side[T], what string) error {
	return s.Wait(what, func() bool { return side.Met })
}

// Offer comes with a message that is offered.
func (m *Mail[T]) Offer(from, to int, out *Side[T]) error {
	w := m.way(from, to)
	w.offers = append(w.offers, out)
	return m.match(from, to, &w.offers, &w.posts)
}

// Post comes with memory for an offer.
func (m *Mail[T]) Post(from, to int, in *Side[T]) error {
	w := m.way(from, to)
	if len(w.sends) > 0 && len(w.offers) == 0 {
		return m.refuse("rank %d sends to rank %d at %s, which posts memory at %s: that takes an Offer", from, to,
			w.sends[0].Site, in.Site)
	}
	w.posts, w.posted = append(w.posts, in), append(w.posted, in)
	return m.match(from, to, &w.offers, &w.posts)
}

// Await takes the oldest posted memory, which may not have been filled yet, for a copy to dst.
func (m *Mail[T]) Await(from, to int, dst Message) (*Side[T], error) {
	w := m.way(from, to)
	if len(w.posted) == 0 {
		return nil, m.refuse("rank %d awaits a message of rank %d at %s and has posted no memory for it", to, from, dst.Site)
	}
	in := w.posted[0]
	if in.Tensor.Len() != dst.Tensor.Len() || in.Tensor.DType != dst.Tensor.DType {
		return nil, m.refuse("rank %d receives %s into memory posted at %s and receives %s of it at %s", to, in.Tensor,
			in.Site, dst.Tensor, dst.Site)
	}
	w.posted = w.posted[1:]
	return in, nil
}

// Wanted reports whether memory is posted that no offer has filled.
func (m *Mail[T]) Wanted(from, to int) bool { return len(m.way(from, to).posts) > 0 }

// match moves the oldest messages whose sides are both there.
func (m *Mail[T]) match(from, to int, outs, ins *[]*Side[T]) error {
	if m.Elsewhere != nil && (m.Elsewhere(from) || m.Elsewhere(to)) {
		*outs, *ins = nil, nil
	}
	for len(*outs) > 0 && len(*ins) > 0 {
		out, in := (*outs)[0], (*ins)[0]
		if err := Agree(m.Name, in.Message, to, out.Message, from); err != nil {
			return err
		}
		if m.Move != nil {
			if err := m.Move(from, to, out, in); err != nil {
				return err
			}
		}
		out.Met, in.Met = true, true
		*outs, *ins = (*outs)[1:], (*ins)[1:]
	}
	return nil
}

// Standing lists who has come to a collective, or sends, and waits for others.
func (m *Mail[T]) Standing(calls []*Call) string {
	var s strings.Builder
	for r, c := range calls {
		if c != nil {
			fmt.Fprintf(&s, "[rank %d %s at %s]", r, c.Op, c.Site)
		}
	}
	for k, w := range m.ways {
		if len(w.sends) > 0 {
			fmt.Fprintf(&s, "[rank %d sends to %d at %s]", k[0], k[1], w.sends[0].Site)
		}
	}
	return s.String()
}
