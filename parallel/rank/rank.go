// Package rank does one rank's part of a request. It knows a model, its Ops, its ends of exchanges, and the plan and
// lanes that it is sent. It knows no request, no sampler, no other rank and no forecast. From top to bottom:
//
//   - The leader's end is port.go. serve.go takes commands (command.go, inbox.go) in order, opens sessions and replies;
//     task.go works beside sessions; evaluate.go measures a session and issues evaluations; rank.go is the state.
//   - session.go is the model of a request and what belongs to it alone: control.go with the nets of net.go,
//     residual.go, skips.go (outputs that later blocks read), stage_exchange.go (rows to the next stage), replays.go.
//   - network.go is what the model and a control net share: entries, rows, blocks. pass.go says which blocks a kind of
//     evaluation runs and with whom, tensor.go shares rows between products.
//   - methods.go chooses how split tokens attend (attention.go, sequence.go): ulysses.go, ring.go, kvstore.go (keys and
//     values of a pipeline), kvstore8.go (in 8 bits), spread.go (all stages at once). lanes.go is what the lanes of a
//     stage share, bias.go what is added to scores.
//   - prefetcher.go brings weights that are not in place, profiled.go records, position.go says where the rank is.
package rank

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

// Rank is one device's share of the work: an ordinary goroutine that takes commands in order. It shares weights with
// other ranks of the process, a LaneStore with the other lane of its stage, and nothing else.
type Rank struct {
	Ops engine.Ops // its own, closed at the end
	Pos *Position  // where the rank stands

	id        int
	weights   func(key string) (dit.Model, bool) // finds resident weights
	more      func() (engine.Ops, error)         // makes other Ops for work beside the rank
	beside    engine.Ops                         // made by more; nil: not needed so far
	session   Buffer                             // results of Prepare and Modulate
	acts      Buffer                             // activations, in stack order
	exchange  Buffer                             // what Comm reads and writes
	brought   Buffer                             // slots and staging places of weights that are brought
	comms     [plan.AxisCount]comm.Comm
	lanes     *LaneStore
	sessions  map[uint64]*session
	charged   [plan.AxisCount]comm.Traffic // traffic attributed to sessions so far
	calls     peekable
	scheduler *scope.Scheduler
	closing   atomic.Bool   // the inbox is closed
	at        atomic.Int64  // commands taken but not answered
	cancelled atomic.Uint64 // newest session that was cancelled, set while the rank computes
}

// Buffer is memory that grows to its largest use and stays. The owner frees Mem with the Ops that were passed to Grow.
type Buffer struct {
	Mem   engine.Buf
	Bytes int
}

// New makes a rank with its ends on every axis. Those of one stage share lanes. weights finds resident weights by key,
// more makes other Ops on the same device for work beside the rank. b may be nil.
func New(id int, ops engine.Ops, comms [plan.AxisCount]comm.Comm, lanes *LaneStore,
	weights func(string) (dit.Model, bool), more func() (engine.Ops, error), b *scope.Scheduler,
) *Rank {
	return &Rank{
		id: id, Ops: ops, comms: comms, lanes: lanes, weights: weights, more: more, scheduler: b, Pos: newPosition(ops),
		sessions: map[uint64]*session{},
	}
}

// opsBeside returns other Ops on the device of the rank, for work beside it.
func (r *Rank) opsBeside() (engine.Ops, error) {
	if r.beside != nil {
		return r.beside, nil
	}
	ops, err := r.more()
	if err == nil {
		r.beside = ops
	}
	return ops, err
}

// CloseOps frees what Ops hold of a device: streams and scratch memory. It ignores errors, because an error of the
// device has been in a reply before.
func CloseOps(ops ...engine.Ops) {
	for _, o := range ops {
		if c, ok := o.(io.Closer); ok {
			_ = c.Close()
		}
	}
}

// Memory returns the bytes that the rank has taken for sessions, activations and exchanges.
func (r *Rank) Memory() (session, activations, exchange int) {
	return r.session.Bytes, r.acts.Bytes, r.exchange.Bytes
}

// StoredRows counts what the rank keeps of requests: sessions, and outputs that later blocks read. Between requests
// both are 0.
func (r *Rank) StoredRows() (sessions, skips int) { return len(r.sessions), r.lanes.len() }

func (r *Rank) End(a plan.Axis) comm.Comm { return r.comms[a] }

// cancel makes the session's running and later evaluations stop before their next block. It is safe for concurrent use.
// Sessions of a rank follow each other with growing numbers: cancel may come before its session opens and after it has
// closed, and stops no later one.
func (r *Rank) cancel(session uint64) {
	for last := r.cancelled.Load(); last < session && !r.cancelled.CompareAndSwap(last, session); {
		last = r.cancelled.Load()
	}
}

// Stopped reports whether a session must stop before its next block.
func (r *Rank) Stopped(session uint64) bool { return r.cancelled.Load() >= session }

// fix makes the device compute as the plan of a session requires.
func (r *Rank) fix(p plan.Plan) {
	if f, ok := r.Ops.(engine.Fixer); ok {
		f.Fix(p.Deterministic)
	}
}

// retire forgets a session.
func (r *Rank) retire(id uint64) {
	if s := r.sessions[id]; s != nil {
		s.weights.close()
	}
	delete(r.sessions, id)
	r.lanes.forget(id)
}

// Grow makes the buffer at least n bytes long. If it grows, its contents are lost.
func (b *Buffer) Grow(ops engine.Ops, n int) error {
	if n <= b.Bytes {
		return nil
	}
	ops.Free(b.Mem)
	b.Mem, b.Bytes = engine.Buf{}, 0
	mem, err := ops.Alloc(n)
	if err != nil {
		return fault.Wrap(fault.OutOfMemory, "latent", fmt.Errorf("latent: one evaluation needs %d MB more of "+
			"activations and buffers, and the system does not give them: use a smaller picture or batch: %w", n>>20, err))
	}
	b.Mem, b.Bytes = mem, n
	return nil
}

// waits describes the exchanges that the rank waits in, "" if none.
func (r *Rank) waits() string {
	var out []string
	for a, c := range r.comms {
		if what := c.Waiting(); what != "" {
			out = append(out, fmt.Sprintf("%s for %s", plan.Axis(a), what))
		}
	}
	return strings.Join(out, " and ")
}
