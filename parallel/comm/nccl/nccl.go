// Package nccl is the transport of ranks that have an NVIDIA GPU each, by NVIDIA's library NCCL. They share a process
// or live in several. In the latter case the processes are also connected in host memory, where they share the ids from
// which communicators are made and tell each other that a group has ended (between.go).
//
// Every group has communicators: one of all its ranks, on which exchanges run on the streams of the ranks' Ops, and,
// for a pipeline, one of each two neighbors, whose messages run on a separate stream at either end, so that what comes
// in never waits for what goes out. A rank's host does not wait for peers: it issues and continues. NCCL matches calls
// by order and does not detect mismatches. The ends therefore compare their calls on the host, which costs no wait, as
// far as they share a process, and a group whose ranks disagree is aborted with both call sites.
//
// Sums have the same bits as those of every other transport. With two ranks NCCL does them, since the order cannot
// matter. With more, each rank gathers the parts of its share and adds them in rank order (see ADR 19).
//
// nccl.go and wires.go make and keep communicators, end.go issues calls, collective.go and message.go implement the
// calls of Comm.
package nccl

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/nccl"
	"patchbay/parallel/comm"
	"patchbay/parallel/scope"
)

// communicators holds the communicators of one group, one per rank: a *nccl.Clique, which documents the methods, or a
// test's wrapper that injects faults.
type communicators interface {
	Pending(rank int) (bool, error)
	Exchange(rank int, on *driver.Stream, send, recv []engine.Tensor) (pending bool, err error)
	AllGather(rank int, on *driver.Stream, dst, src engine.Tensor) (pending bool, err error)
	ReduceScatter(rank int, on *driver.Stream, dst, src engine.Tensor) (pending bool, err error)
	AllReduce(rank int, on *driver.Stream, buf engine.Tensor) (pending bool, err error)
	Abort()
	Close(patience time.Duration) error
}

// edgeLimit is how many multiprocessors messages between neighbors of a pipeline take from the products beside them.
const edgeLimit = 4

// Transport connects Ops that are *cuda.Ops. It keeps communicators for later groups on the same GPUs. Only one team
// may be at work at a time, unless Beside is set.
type Transport struct {
	// Beside allows several teams to be at work, each on other GPUs: communicators are kept until Close.
	Beside bool

	// connect makes communicators of all ranks of a group, the first one, and of pairs of neighbors.
	connect func(ids [][]byte, groups ...[]*cuda.Ops) ([]communicators, error)
	newID   func() ([]byte, error)
	local   comm.Transport
	between comm.Transport // transport of host memory for ranks in several processes; nil: all share this one
	period  time.Duration  // interval between checks of the communicators

	mu     sync.Mutex
	cached []*wires
	team   uint64 // the team at work
	ended  chan struct{}
	watch  *scope.Scope
}

var _ comm.Transport = (*Transport)(nil)

// New returns a transport that uses lib. Groups with two members on one GPU, which NCCL does not support, are connected
// by local, or rejected if local is nil.
func New(lib *nccl.Library, local comm.Transport) *Transport {
	return &Transport{
		newID: lib.NewID,
		connect: func(ids [][]byte, groups ...[]*cuda.Ops) ([]communicators, error) {
			streams := make([][]*driver.Stream, len(groups))
			for i, ops := range groups {
				streams[i] = make([]*driver.Stream, len(ops)) // nil: in another process
				for r, o := range ops {
					if o != nil {
						streams[i][r] = o.Stream
					}
				}
			}
			limits := make([]int, len(groups))
			for i := range limits[1:] {
				limits[1+i] = edgeLimit
			}
			cliques, err := lib.Connect(ids, limits, streams...)
			out := make([]communicators, len(cliques))
			for i, c := range cliques {
				out[i] = c
			}
			return out, err
		},
		local: local, period: time.Second, ended: make(chan struct{}), watch: scope.New(nil),
	}
}

// NewBetween returns a transport of ranks in several processes. They coordinate over host, a transport of host memory,
// and exchange over it in groups that NCCL does not support. Close releases communicators without waiting for other
// processes.
func NewBetween(lib *nccl.Library, host comm.Transport) *Transport {
	t := New(lib, host)
	t.between = host
	return t
}

// Interruptible implements comm.Transport with false: what is enqueued runs to its end.
func (*Transport) Interruptible() bool { return false }

// Connect implements comm.Transport. It returns an error for Ops of other kinds and for groups of more than 32 ranks.
// If communicators must be made, it waits for that, and for the other processes, for at most two minutes.
func (t *Transport) Connect(of comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	streams := make([]*cuda.Ops, len(ops))
	for r, o := range ops {
		stream, ok := o.(*cuda.Ops)
		if !ok && o != nil {
			return nil, fmt.Errorf("%s: rank %d runs on %s, which is no stream of a GPU", of.Name, r, o.Name())
		}
		streams[r] = stream
	}
	g := &members{
		limit: cmp.Or(of.Deadline, patience), calls: map[int][]*comm.Call{}, ends: make([]*end, len(ops)),
	}
	g.Rendezvous = comm.NewRendezvous(of, len(ops), func() string { return g.mail.Standing(nil) })
	g.mail = comm.Mail[driver.Point]{Name: of.Name, Elsewhere: func(r int) bool { return g.ends[r] == nil }}
	out := make([]comm.Comm, len(ops))
	for r, s := range streams {
		if s == nil {
			g.shared = true
			continue
		}
		if err := s.Join(slices.Repeat([]*cuda.Ops{s}, len(ops))); err != nil { // for sums of so many parts on one device
			return nil, fmt.Errorf("%s: %w", of.Name, err)
		}
		g.ends[r] = &end{Seat: comm.NewSeat(g.Rendezvous, r), group: g, stream: s}
		out[r] = g.ends[r]
	}
	if len(streams) == 1 {
		return out, nil
	}
	if err := t.begin(of.Team); err != nil { // before the others are sent which communicators are cached
		return nil, fmt.Errorf("%s: %w", of.Name, err)
	}
	where, known, err := t.introduce(of, g, ops, streams)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", of.Name, err)
	}
	for r := range where {
		if first := slices.Index(where[:r], where[r]); first >= 0 {
			if t.local != nil {
				return t.local.Connect(of, ops)
			}
			return nil, fmt.Errorf("%s: ranks %d and %d are both on %s: NCCL takes one rank a GPU (--transport local takes any "+
				"number)", of.Name, first, r, where[r])
		}
	}
	w, err := t.wires(of, streams, fmt.Sprint(where, of.Pipe), g, known)
	if err != nil {
		g.abort(err) // also in the other processes
		return nil, fmt.Errorf("%s: %w", of.Name, err)
	}
	return out, g.use(w)
}

// introduce returns where the ranks of a group are. If they are in several processes, these exchange that, and known
// are the names of cached communicators that all of them have.
func (t *Transport) introduce(of comm.Group, g *members, ops []engine.Ops, streams []*cuda.Ops,
) (where []string, known [][]byte, err error) {
	if !g.shared {
		for _, s := range streams {
			where = append(where, s.Location())
		}
		return where, nil, nil
	}
	if t.between == nil {
		return nil, nil, errors.New("some ranks live in other processes, and nothing connects them")
	}
	if g.talk, err = meet(t.between, of, ops); err != nil {
		return nil, nil, err
	}
	g.talk.onAbort(g.abort)
	return g.talk.introduce(streams, t.usable())
}

// Close releases the communicators. No team may be at work any more.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cached != nil {
		close(t.ended)
	}
	return t.drop(func(*wires) bool { return true })
}
