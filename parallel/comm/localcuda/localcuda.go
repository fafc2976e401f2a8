// Package localcuda is the transport of ranks of one process on NVIDIA GPUs, several of them on one GPU if need be.
//
// Ranks meet on the host (comm.Rendezvous) to say what they move and from where on their streams; then the copies are
// enqueued on the streams of the receivers, behind points of the senders that have been recorded by then: nobody waits
// on a device for something that is not issued, so no device waits for ever. The host of a rank goes on as soon as
// its peers have issued their part, long before anything has moved. Devices that reach each other's memory copy
// straight, others through the host. Sums are made in the order of the ranks, each part of one by one rank, so that all
// ranks get the same bits and the same ones as on the CPU.
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

// Connect implements comm.Transport. It refuses Ops of other kinds and groups of more than 32 ranks.
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

// Interruptible is false: what is enqueued runs to its end.
func (Transport) Interruptible() bool { return false }

// group is what the ends share; its lock guards all below.
type group struct {
	*comm.Rendezvous
	streams []*cuda.Ops
	round   int // collectives that all ranks have issued
	mail    comm.Mail[points]

	// collective in progress, by rank: its part, the stream that it goes on, and where that has the rank's memory ready
	calls []*comm.Call
	on    []*cuda.Ops
	ready []driver.Point
}

// end is one rank's end.
type end struct {
	comm.Seat
	group    *group
	stream   *cuda.Ops         // of the rank
	beside   *cuda.Ops         // of collectives beside; nil before the first one
	incoming map[int]*cuda.Ops // of messages into slots, by sender
	sending  []*side           // offers whose slots may still be read
	begun    int               // round that the collective beside ends with
}

// do is Do, the time of which counts as one of waiting.
func (e *end) do(f func() error) {
	defer e.Spent(time.Now())
	e.Do(f)
}

// failed is the first error of a stream, nil if none has one. It does not look at streams of ranks that are not
// waiting.
func (g *group) failed(streams ...*cuda.Ops) error {
	for _, s := range streams {
		if err := s.Err(); err != nil {
			return &comm.Error{Text: g.Name + ": " + s.Location(), Cause: err}
		}
	}
	return nil
}
