// Package localcuda is the transport of ranks in one process on NVIDIA GPUs; several of them may share a GPU.
//
// Ranks wait for each other on the host (comm.Rendezvous) and exchange what they move and which point of their streams
// it must follow. The
// copies are then enqueued on the receivers' streams, after points of the senders' streams that are already recorded:
// no device ever waits for work that has not been issued, so none can wait forever. A rank's host continues as soon as
// its peers have issued their part, long before anything has moved. Devices that can access each other's memory copy
// directly, others through the host. Sums are made in rank order, each part by one rank, so that all ranks get the same
// bits, which are those of the CPU.
package localcuda

import (
	"fmt"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// Transport connects Ops that are *cuda.Ops of one process.
type Transport struct{}

var _ comm.Transport = Transport{}

// Connect implements comm.Transport. It returns an error for Ops of other kinds and for groups of more than 32 ranks.
func (Transport) Connect(of comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	g := &group{
		calls: make([]*comm.Call, len(ops)), on: make([]*cuda.Ops, len(ops)), ready: make([]driver.Point, len(ops)),
	}
	g.Rendezvous = comm.NewRendezvous(of, len(ops), func() string { return g.mail.Standing(g.calls) })
	g.mail = comm.Mail[points]{Name: of.Name, Move: g.move}
	for r, o := range ops {
		stream, ok := o.(*cuda.Ops)
		if !ok {
			return nil, fmt.Errorf("%s: rank %d runs on %s, which is no stream of a GPU", of.Name, r, o.Name())
		}
		g.streams = append(g.streams, stream)
	}
	out := make([]comm.Comm, len(ops))
	for r, s := range g.streams {
		if err := s.Join(g.streams); err != nil {
			return nil, fmt.Errorf("%s: %w", of.Name, err)
		}
		out[r] = &end{Seat: comm.NewSeat(g.Rendezvous, r), group: g, stream: s, incoming: map[int]*cuda.Ops{}}
	}
	return out, nil
}

// Interruptible implements comm.Transport with false: what is enqueued runs to its end.
func (Transport) Interruptible() bool { return false }

// group is the state that the ends share. The Rendezvous's lock guards the fields from round on.
type group struct {
	*comm.Rendezvous
	streams []*cuda.Ops
	round   int // collectives that all ranks have issued
	mail    comm.Mail[points]

	// The collective in progress, by rank: its part, its stream, and the point there at which its memory is ready.
	calls []*comm.Call
	on    []*cuda.Ops
	ready []driver.Point
}

type end struct {
	comm.Seat
	group    *group
	stream   *cuda.Ops         // the rank's stream
	async    *cuda.Ops         // stream of collectives started by Begin; nil before the first
	incoming map[int]*cuda.Ops // streams of messages into slots, by sender
	sending  []*side           // offers whose slots may still be in use
	begun    int               // round that the rank's last collective ends
}

// do is Do, and counts its time as waiting.
func (e *end) do(f func() error) {
	defer e.Spent(time.Now())
	e.Do(f)
}

// failed returns the first error of the streams, nil if there is none. Ops are not synchronized: the ranks of streams
// must not be using them.
func (g *group) failed(streams ...*cuda.Ops) error {
	for _, s := range streams {
		if err := s.Err(); err != nil {
			return &comm.Error{Text: g.Name + ": " + s.Location(), Cause: err}
		}
	}
	return nil
}
