// Package rank does one rank's part of a request. A rank takes commands (command.go), which are plain values, from its
// link (port.go) in order: rank.go opens sessions and replies, evaluate.go runs the blocks of a stage, sequence.go is
// attention over split tokens (Ulysses, ring), kvstore.go keeps the keys and values of a pipeline (kvstore8.go in 8
// bits), lanes.go what the lanes of a stage share, stage_exchange.go passes rows to the next stage, spread.go runs
// evaluations on all stages at once, tensor.go shares rows between products, prefetcher.go gathers weights in parts,
// net.go runs control nets, task.go work beside sessions, position.go says where the rank is. The package knows a
// model, its Ops, its ends of exchanges, and the plan and lanes that it is sent. It knows no request, no sampler, no
// other rank and no forecast.
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
	session   Buffer                             // results of Prepare and Modulate
	acts      Buffer                             // activations, in stack order
	exchange  Buffer                             // what Comm reads and writes
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

// session is one request on one rank.
type session struct {
	id         uint64
	lanes      *LaneStore
	model      dit.Model
	open       OpenCommand
	entries    []sessionEntry
	rowOf      map[float32]int // timestep -> row of the modulations
	env        dit.Env         // arena of the session
	act        *engine.Arena
	comm       *engine.Arena
	comms      [plan.AxisCount]comm.Comm
	sent       [plan.AxisCount]comm.Traffic // in this session
	held       dit.Range                    // blocks of this rank's stage
	weights    *prefetcher                  // nil: the rank holds whole weights
	tokens     TokenCount
	chosen     map[string]int64 // counts before the session
	stop       func() bool      // reports whether it was cancelled; nil: never
	pos        *Position
	link       *stageExchange
	peek       func(i int) *Command       // peeks at waiting commands
	replies    map[string][]engine.Tensor // predictions of evaluations that a device replays, see replayOrIssue
	fixed      bool                       // calls are being issued for replay
	nets       []*net                     // control nets on its entries
	controlNet *net                       // in the session of a control net: the net
	// resident finds the weights of control nets
	resident func(key string) (dit.Model, bool)
}

// sessionEntry is one prepared conditioning entry; a foreign one has no p.
type sessionEntry struct {
	grid  dit.Grid
	p     *dit.Prepared
	wide  *kvStore              // keys and values of all blocks, for spread evaluations
	skips map[int]engine.Tensor // outputs of blocks that later ones read, for spread evaluations; nil: none
	store *kvStore              // keys and values of the blocks of this stage; nil without a pipeline
	m     *dit.Modulation       // for the expected timesteps
	bias  *biasTable            // nil: none
	// model patches, in the order in which they change rows
	patches       []patched
	modelSequence plan.Sequence // of a net's entry: that of the model's entry whose rows it computes
}

// errStopped ends an evaluation whose session was canceled.
var errStopped = &fault.Error{Code: fault.Cancelled, Text: "stopped before the next block"}

// New makes a rank with its ends on every axis. Those of one stage share lanes. weights finds resident weights by key.
// b may be nil.
func New(id int, ops engine.Ops, comms [plan.AxisCount]comm.Comm, lanes *LaneStore,
	weights func(string) (dit.Model, bool), b *scope.Scheduler,
) *Rank {
	return &Rank{
		id: id, Ops: ops, comms: comms, lanes: lanes, weights: weights, scheduler: b, Pos: newPosition(ops),
		sessions: map[uint64]*session{},
	}
}

// outcome is a command whose work has been issued; outputs waits until it is done.
type outcome struct {
	call    call
	reply   Reply
	outputs func() ([]dit.Floats, error)
}

// serve takes calls until the inbox is closed. It issues the work of a call while the results of earlier ones are still
// under way. Replies are sent in order.
func (r *Rank) serve(inbox <-chan call) {
	r.calls = peekable{inbox: inbox}
	issued, answers := make(chan outcome, queueLength), scope.New(nil)
	answers.Go(fmt.Sprintf("answers of rank %d", r.id), func() error {
		for o := range issued {
			r.answer(o)
		}
		return nil
	})
	for {
		if r.scheduler != nil && len(r.calls.ahead) == 0 {
			r.scheduler.Block(true, func() bool { return len(inbox) > 0 || r.closing.Load() })
		}
		call, ok := r.calls.next()
		if !ok {
			break
		}
		r.at.Add(1)
		o := outcome{call: call}
		err := scope.Recovered(fmt.Sprintf("rank %d", r.id), func() error {
			var err error
			o.reply, o.outputs, err = r.handle(call.command)
			return err
		})
		if err != nil {
			r.fail(&o, err)
		}
		if r.scheduler != nil { // one goroutine at a time
			r.answer(o)
		} else {
			issued <- o
		}
	}
	close(issued)
	_ = answers.Wait()             // errors are in the replies
	for _, s := range r.sessions { // left by a failed request: nothing may write into weights that are freed next
		s.close()
	}
	_ = r.Ops.Sync() // nothing may use the memory afterwards, even after an error
	for _, b := range []*Buffer{&r.session, &r.acts, &r.exchange} {
		r.Ops.Free(b.Mem)
	}
	CloseOps(r.Ops)
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

// answer waits for the results of a command and replies.
func (r *Rank) answer(o outcome) {
	if o.outputs != nil && o.reply.Err == nil {
		err := scope.Recovered(fmt.Sprintf("rank %d", r.id), func() error {
			var err error
			o.reply.Outputs, err = o.outputs()
			return err
		})
		if err != nil {
			r.fail(&o, err)
		}
	}
	if r.at.Add(-1) == 0 {
		r.Pos.idle()
	}
	o.call.reply(o.reply)
}

// fail makes an error the reply to a command and aborts the exchanges, so that peers do not wait for this rank forever.
// It does not abort for an Open that gathers no weights, which has no exchanges.
func (r *Rank) fail(o *outcome, err error) {
	o.reply = Reply{Err: scope.AsError(err)}
	if open := o.call.command.Open; open == nil || open.Plan.Parts() > 1 {
		for _, c := range r.comms {
			c.Abort(err)
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

// End returns the rank's end on an axis.
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

// handle issues the work of a command. outputs, if not nil, waits for the predictions.
func (r *Rank) handle(c Command) (reply Reply, outputs func() ([]dit.Floats, error), err error) {
	switch {
	case c.Open != nil:
		reply, err = r.openSession(c.Session, *c.Open)
		return reply, nil, err
	case c.Evaluate != nil:
		s := r.sessions[c.Session]
		if s == nil {
			return reply, nil, fmt.Errorf("rank %d: session %d is not open", r.id, c.Session)
		}
		r.fix(s.open.Plan)
		outputs, err = s.evaluate(s.env.Ops, *c.Evaluate)
		return r.report(s, false), outputs, err
	case c.Task != nil:
		reply.Answer, err = r.task(c.Session, c.Task)
		return reply, nil, err
	case c.Close:
		if s := r.sessions[c.Session]; s != nil {
			s.close()
			err = r.Ops.Sync()
			reply = r.report(s, true)
			reply.Spans = spans(s.env.Ops)
		}
		r.retire(c.Session)
		return reply, nil, err
	}
	return reply, nil, fmt.Errorf("rank %d: empty command", r.id)
}

// fix makes the device compute as the plan of a session requires.
func (r *Rank) fix(p plan.Plan) {
	if f, ok := r.Ops.(engine.Fixer); ok {
		f.Fix(p.Deterministic)
	}
}

// openSession measures what the session needs, takes the memory and prepares all entries.
func (r *Rank) openSession(id uint64, o OpenCommand) (Reply, error) {
	r.Pos.at("opening a session")
	r.fix(o.Plan)
	model, ok := r.weights(o.Model)
	if !ok {
		return Reply{}, fmt.Errorf("rank %d: model %s is not resident", r.id, o.Model)
	}
	need, err := Measure(model, o, r.comms, r.weights)
	if err != nil {
		return Reply{}, err
	}
	total := need.Total()
	device, reserves := r.Ops.(engine.Reserver)
	if reserves {
		total += device.Scratch(need.Calls)
	}
	if err := o.Fits(total); err != nil {
		return Reply{}, err
	}
	if reserves {
		if err := device.Reserve(need.Calls); err != nil {
			return Reply{}, fault.Wrap(fault.OutOfMemory, "latent",
				fmt.Errorf("latent: reserve scratch memory for one evaluation: %w", err))
		}
	}
	if device, ok := r.Ops.(engine.Replayer); ok {
		device.Drop() // the buffers may move
	}
	for _, b := range []struct {
		*Buffer
		need int
	}{{&r.session, need.Session}, {&r.acts, need.Activations}, {&r.exchange, need.Exchange}} {
		if err := b.Grow(r.Ops, b.need); err != nil {
			return Reply{}, err
		}
	}
	s := &session{
		id: id, model: model, open: o, replies: map[string][]engine.Tensor{}, pos: r.Pos,
		stop: func() bool { return r.Stopped(id) },
		peek: r.calls.peek, comms: r.comms, lanes: r.lanes, resident: r.weights,
		env:  dit.Env{Ops: r.Ops, Arena: engine.NewArena("session", r.session.Mem, r.session.Bytes), DType: o.DType},
		act:  engine.NewArena("activations", r.acts.Mem, r.acts.Bytes),
		comm: engine.NewArena("communication", r.exchange.Mem, r.exchange.Bytes),
	}
	if c, ok := r.Ops.(engine.Chooser); ok {
		s.chosen = c.Chosen()
	}
	if device, ok := r.Ops.(engine.Replayer); o.Profile != 0 {
		s.env.Ops, s.comms = measured(r.Ops, r.comms, r.id, o.Profile)
	} else if ok {
		s.comms = watch(r.comms, func(_ comm.Comm, _ string, f func()) { device.Between(f) })
	}
	if poisoner, ok := r.Ops.(interface{ Watch(*engine.Arena) }); ok { // deferred execution poisons what is released
		poisoner.Watch(s.env.Arena)
		poisoner.Watch(s.act)
		poisoner.Watch(s.comm)
	}
	s.weights = newPrefetcher(model.Shards(), s.comms[plan.AxisShard], o.Plan.Overlap)
	r.sessions[id] = s // before anything is gathered: serve waits for the gathers of all sessions
	if err := s.prepare(); err != nil {
		return Reply{}, err
	}
	if err := r.Ops.Sync(); err != nil { // the other lane of a folded stage may write into stores of this one from now on
		return Reply{}, err
	}
	reply := r.report(s, false)
	reply.PeakBytes = total
	return reply, nil
}

// close waits for gathers that run beside the calls of a session.
func (s *session) close() {
	s.weights.close()
	for _, n := range s.nets {
		n.of.close()
	}
}

// retire forgets a session.
func (r *Rank) retire(id uint64) {
	if s := r.sessions[id]; s != nil {
		s.close()
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

// report attributes to a session what was sent since the last report, and returns a reply with all that it has sent and
// computed so far. Weights in parts move beside the micro-steps and are counted in the last report only.
func (r *Rank) report(s *session, last bool) Reply {
	out := Reply{Traffic: make([]comm.Traffic, plan.AxisCount), Tokens: s.tokens}
	for a, c := range r.comms {
		if plan.Axis(a) == plan.AxisShard && !last {
			continue
		}
		now, was, sum := c.Traffic(), r.charged[a], &s.sent[a]
		sum.Add(now.Less(was))
		r.charged[a], out.Traffic[a] = now, *sum
	}
	if c, ok := r.Ops.(engine.Chooser); ok && last {
		out.Chosen = c.Chosen()
		for way, before := range s.chosen {
			out.Chosen[way] -= before
		}
	}
	return out
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
