// Package nccl is the transport of ranks of one process that have an NVIDIA GPU each, by NVIDIA's library NCCL.
//
// Every group has communicators: one of all its ranks, on which exchanges run on the streams of the ranks' Ops, and
// where a pipeline uses it one of each two neighbours, whose messages run beside, on a stream of their own at either
// end, so that what comes in never waits for what goes out. A rank's host waits for no peer: it issues and goes on.
// NCCL matches calls by their order and finds no mistake in it, so ends compare their calls on the host, which costs no
// wait, and a group whose ranks disagree is aborted with both call sites.
//
// Sums are the same bits as those of every other transport: with two ranks NCCL's own, where no order can differ, with
// more of them each rank brings the parts of its share together and adds them up in rank order (see ADR 19).
//
// wires.go makes communicators and keeps them, end.go issues, collective.go and message.go are the calls of Comm.
package nccl

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm"
)

// communicators are those of one group, one for each of its ranks: *cuda.Clique, whose comments say more. What tests
// plant mistakes in is the other one.
type communicators interface {
	Pending(rank int) (bool, error)
	Exchange(rank int, on *cuda.Ops, send, recv []engine.Tensor) (pending bool, err error)
	AllGather(rank int, on *cuda.Ops, dst, src engine.Tensor) (pending bool, err error)
	ReduceScatter(rank int, on *cuda.Ops, dst, src engine.Tensor) (pending bool, err error)
	AllReduce(rank int, on *cuda.Ops, buf engine.Tensor) (pending bool, err error)
	Abort()
	Close(patience time.Duration) error
}

// Transport connects Ops that are *cuda.Ops of one process. It keeps communicators for groups on the same GPUs: ranks
// of one team at a time are at work.
type Transport struct {
	connect func(groups ...[]*cuda.Ops) ([]communicators, error)
	local   comm.Transport
	period  time.Duration // between looks at communicators

	mu    sync.Mutex
	kept  []*wires
	team  uint64 // that is at work
	ended chan struct{}
	watch sync.WaitGroup
}

var _ comm.Transport = (*Transport)(nil)

// New makes a transport by a library. Groups with two members on one GPU, which NCCL does not serve, are connected by
// local, and refused if it is nil.
func New(lib *cuda.NCCL, local comm.Transport) *Transport {
	return &Transport{
		connect: func(groups ...[]*cuda.Ops) ([]communicators, error) {
			cliques, err := lib.Connect(groups...)
			out := make([]communicators, len(cliques))
			for i, c := range cliques {
				out[i] = c
			}
			return out, err
		},
		local: local, period: time.Second, ended: make(chan struct{}),
	}
}

// Interruptible is false: what is enqueued runs to its end.
func (*Transport) Interruptible() bool { return false }

// Connect implements comm.Transport. It refuses Ops of other kinds and groups of more than 32 ranks. Where
// communicators have to be made it waits for that, at most two minutes.
func (t *Transport) Connect(of comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	streams := make([]*cuda.Ops, len(ops))
	for r, o := range ops {
		stream, ok := o.(*cuda.Ops)
		if !ok {
			return nil, fmt.Errorf("%s: rank %d runs on %s, which is no stream of a GPU", of.Name, r, o.Name())
		}
		streams[r] = stream
	}
	where := make([]string, len(streams))
	for r, s := range streams {
		where[r] = s.Location()
		if first := slices.Index(where[:r], where[r]); first >= 0 {
			if t.local != nil {
				return t.local.Connect(of, ops)
			}
			return nil, fmt.Errorf("%s: ranks %d and %d are both on %s: NCCL takes one rank a GPU (--transport local takes any "+
				"number)", of.Name, first, r, where[r])
		}
	}
	g := &group{
		name: of.Name, deadline: of.Deadline, calls: map[int][]*comm.Call{}, ways: map[[2]int]*way{},
		waits: make([]string, len(ops)),
	}
	for r, s := range streams {
		if err := s.Join(slices.Repeat([]*cuda.Ops{s}, len(ops))); err != nil { // for sums of so many parts on one device
			return nil, fmt.Errorf("%s: %w", of.Name, err)
		}
		g.ends = append(g.ends, &end{group: g, rank: r, stream: s})
	}
	if len(streams) > 1 {
		w, err := t.wires(of, streams, fmt.Sprint(where, of.Pipe))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", of.Name, err)
		}
		g.wires = w
		w.serve(g)
	}
	out := make([]comm.Comm, len(ops))
	for r, e := range g.ends {
		out[r] = e
	}
	return out, nil
}

// Close gives the communicators back; no team is at work any more.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept != nil {
		close(t.ended)
	}
	return t.drop(func(*wires) bool { return true })
}
