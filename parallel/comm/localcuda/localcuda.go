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
	"strings"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm"
)

// Transport connects Ops that are *cuda.Ops of one process.
type Transport struct{}

var _ comm.Transport = Transport{}

// Connect implements comm.Transport. It refuses Ops of other kinds and groups of more than 32 ranks.
func (Transport) Connect(of comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	g := &group{name: of.Name, calls: make([]*call, len(ops)), ways: map[[2]int]*way{}}
	g.Rendezvous = comm.NewRendezvous(of, len(ops), g.standing)
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
		e := &end{group: g, rank: r, stream: s, incoming: map[int]*cuda.Ops{}}
		g.ends, out[r] = append(g.ends, e), e
	}
	return out, nil
}

// Interruptible is false: what is enqueued runs to its end.
func (Transport) Interruptible() bool { return false }

// group is what the ends share; its lock guards all below.
type group struct {
	*comm.Rendezvous
	name    string
	streams []*cuda.Ops
	ends    []*end
	calls   []*call // collective in progress, by rank
	round   int     // collectives that all ranks have issued
	ways    map[[2]int]*way
}

// end is one rank's end.
type end struct {
	group    *group
	rank     int
	stream   *cuda.Ops         // of the rank
	beside   *cuda.Ops         // of prefetches; nil before the first one
	incoming map[int]*cuda.Ops // of messages into slots, by sender
	sending  []*side           // offers whose slots may still be read
	prefetch int               // round that the prefetch under way ends with
	traffic  comm.Traffic
}

// Rank returns this end's number in the group.
func (e *end) Rank() int { return e.rank }

// Size returns the number of ranks in the group.
func (e *end) Size() int { return len(e.group.ends) }

// Waiting says what the host of this rank waits for.
func (e *end) Waiting() string { return e.group.Waiting(e.rank) }

// Abort ends all waits of the group. What was enqueued runs to its end.
func (e *end) Abort(cause error) { e.group.Abort(cause) }

// Traffic returns what this rank has sent so far.
func (e *end) Traffic() (t comm.Traffic) {
	e.group.Locked(func() error {
		t = e.traffic
		return nil
	})
	return t
}

// locked runs f and notes how long the host of this rank was in it.
func (e *end) locked(f func() error) {
	start := time.Now()
	e.group.Locked(func() error {
		err := f()
		e.traffic.Wait += time.Since(start)
		return err
	})
}

// failed aborts the group with the first error of a stream, nil if none has one; the lock is held. It does not look at
// streams of ranks that are not waiting.
func (g *group) failed(streams ...*cuda.Ops) error {
	for _, s := range streams {
		if err := s.Err(); err != nil {
			return g.Fail(&comm.Error{Text: g.name + ": " + s.Location(), Cause: err})
		}
	}
	return nil
}

// standing lists who waits where; the lock is held.
func (g *group) standing() string {
	var s strings.Builder
	for r, c := range g.calls {
		if c != nil {
			fmt.Fprintf(&s, "[rank %d %s at %s]", r, c.Op, comm.Message{Site: c.Site}.At())
		}
	}
	for k, w := range g.ways {
		if w.sent != nil {
			fmt.Fprintf(&s, "[rank %d sends to %d at %s]", k[0], k[1], w.sent.At())
		}
	}
	return s.String()
}
