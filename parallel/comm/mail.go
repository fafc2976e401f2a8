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

// NewMessage returns a Message of t whose site is the call of the Comm method that called NewMessage.
func NewMessage(t engine.Tensor) Message { return Message{t, caller(2)} }

// Agree returns an error if the two sides of a message differ in count or dtype; name is the group's name.
func Agree(name string, dst Message, to int, src Message, from int) error {
	if src.Tensor.Len() != dst.Tensor.Len() || src.Tensor.DType != dst.Tensor.DType {
		return &Error{Text: fmt.Sprintf("%s: rank %d sends %s at %s, rank %d receives %s at %s",
			name, from, src.Tensor, src.Site, to, dst.Tensor, dst.Site)}
	}
	return nil
}

// Side is one side of a message that a rank has issued, with a note of the transport.
type Side[T any] struct {
	Message
	Met  bool // matched with the other side
	Note T
}

// NewSide returns a Side of t whose site is the call of the Comm method that called NewSide.
func NewSide[T any](t engine.Tensor) *Side[T] { return &Side[T]{Message: Message{t, caller(2)}} }

// Mail matches the messages of a group: between any two ranks, sends with receives of SendRecv, and offers with posts,
// each in the order in which they are issued. The caller of any method must hold the group's lock. Errors name the
// calls of both ranks.
type Mail[T any] struct {
	Name string // of the group
	// Move, if not nil, moves a message whose two sides have been matched and agree.
	Move func(from, to int, out, in *Side[T]) error
	// Elsewhere, if not nil, reports whether a rank is in another process. That process does not report its sides, so
	// sides that would match them are dropped.
	Elsewhere func(rank int) bool

	ways map[[2]int]*way[T]
}

// way holds the sides of messages from one rank to another, oldest first: those not matched yet, and posted memory that
// has not been awaited yet.
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

// refuse returns the error for ranks that do not use matching calls.
func (m *Mail[T]) refuse(format string, args ...any) error {
	return &Error{Text: m.Name + ": " + fmt.Sprintf(format, args...)}
}

// Send adds what SendRecv sends.
func (m *Mail[T]) Send(from, to int, out *Side[T]) error {
	w := m.way(from, to)
	if len(w.posts) > 0 {
		return m.refuse("rank %d sends to rank %d at %s, which has posted memory at %s: that takes an Offer", from, to,
			out.Site, w.posts[0].Site)
	}
	w.sends = append(w.sends, out)
	return m.match(from, to, &w.sends, &w.receives)
}

// Receive adds memory for what SendRecv receives.
func (m *Mail[T]) Receive(from, to int, in *Side[T]) error {
	w := m.way(from, to)
	if len(w.posted) > 0 {
		return m.refuse("rank %d receives from rank %d at %s and has posted memory for it before", to, from, in.Site)
	}
	w.receives = append(w.receives, in)
	return m.match(from, to, &w.sends, &w.receives)
}

// Swap adds the sides of a rank's SendRecv and waits until both are matched.
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

// Meet waits until a side is matched. The caller must hold the group's lock.
func Meet[T any](s *Seat, side *Side[T], what string) error {
	return s.Wait(what, func() bool { return side.Met })
}

// Offer adds an offered message.
func (m *Mail[T]) Offer(from, to int, out *Side[T]) error {
	w := m.way(from, to)
	w.offers = append(w.offers, out)
	return m.match(from, to, &w.offers, &w.posts)
}

// Post adds memory for an offer.
func (m *Mail[T]) Post(from, to int, in *Side[T]) error {
	w := m.way(from, to)
	if len(w.sends) > 0 && len(w.offers) == 0 {
		return m.refuse("rank %d sends to rank %d at %s, which posts memory at %s: that takes an Offer", from, to,
			w.sends[0].Site, in.Site)
	}
	w.posts, w.posted = append(w.posts, in), append(w.posted, in)
	return m.match(from, to, &w.offers, &w.posts)
}

// Await removes and returns the oldest posted memory, which may not have been filled yet, for a copy to dst.
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

// Wanted reports whether there is posted memory that no offer has been matched with.
func (m *Mail[T]) Wanted(from, to int) bool { return len(m.way(from, to).posts) > 0 }

// match matches the oldest sides for as long as there are both, and moves their messages.
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

// Standing lists the ranks that have entered a collective or are sending, for errors about others that do not arrive.
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
