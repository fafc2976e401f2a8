package parallel

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/failure"
	"patchbay/parallel/plan"
)

// rank is one device's share of the work: an ordinary goroutine that takes commands in order. It shares weights with other ranks of the process and
// nothing else.
type rank struct {
	id       int
	ops      engine.Ops
	weights  func(key string) (dit.Model, bool) // resident placements
	session  buffer                             // what Prepare and Modulate made
	acts     buffer                             // activations, in stack order
	exchange buffer                             // what Comm reads and writes
	comms    [plan.AxisCount]comm.Comm
	skips    *skipStore
	sessions map[uint64]*rankSession
	charged  [plan.AxisCount]comm.Traffic // what sessions have been charged with
	pos      *position
	calls    peekable
	baton    *baton
	closing  atomic.Bool  // the inbox is closed
	at       atomic.Int64 // commands taken and not answered

	mu        sync.Mutex
	cancelled map[uint64]*atomic.Bool // set from outside while the rank computes
}

// buffer is memory that grows to the largest session and stays.
type buffer struct {
	mem   engine.Buf
	bytes int
}

// rankSession is one request on one rank.
type rankSession struct {
	id      uint64
	skips   *skipStore
	model   dit.Model
	open    OpenCommand
	entries []rankEntry
	rowOf   map[float32]int // timestep -> row of the modulations
	env     dit.Env         // arena of the session
	act     *engine.Arena
	comm    *engine.Arena
	comms   [plan.AxisCount]comm.Comm
	sent    [plan.AxisCount]comm.Traffic // in this session
	held    plan.Lane                    // blocks of this rank's stage
	weights *gatherer                    // nil: whole weights are here
	tokens  TokenCount
	stop    *atomic.Bool
	pos     *position
	link    *stageLink
	peek    func(i int) *Command // calls that wait
}

// rankEntry is one conditioning entry, prepared; a foreign one has no p.
type rankEntry struct {
	grid  dit.Grid
	p     *dit.Prepared
	wide  *kvStore              // the same for all blocks, for spread evaluations
	skips map[int]engine.Tensor // outputs of blocks that later ones take, for spread evaluations; nil: none are
	store *kvStore              // keys and values of the blocks of this stage; nil without a pipeline
	m     *dit.Modulation       // for the timesteps announced
}

// errStopped ends an evaluation whose session was cancelled.
var errStopped = errors.New("stopped before the next block")

func newRank(id int, ops engine.Ops, comms [plan.AxisCount]comm.Comm, skips *skipStore, weights func(string) (dit.Model, bool)) *rank {
	return &rank{id: id, ops: ops, comms: comms, skips: skips, weights: weights, sessions: map[uint64]*rankSession{}, cancelled: map[uint64]*atomic.Bool{}, pos: newPosition(ops)}
}

// outcome is a command whose work is issued; outputs waits until it has been done.
type outcome struct {
	call    rankCall
	reply   Reply
	outputs func() ([][]float32, error)
}

// serve takes calls until the inbox closes. It issues the work of the next one while the results of the last ones are under way; answers come in order.
func (r *rank) serve(inbox <-chan rankCall) {
	r.calls = peekable{inbox: inbox}
	issued, answers := make(chan outcome, queueLength), NewGroup(nil)
	answers.Go(fmt.Sprintf("answers of rank %d", r.id), func() error {
		for o := range issued {
			r.answer(o)
		}
		return nil
	})
	for {
		if r.baton != nil && len(r.calls.ahead) == 0 {
			r.baton.block(true, func() bool { return len(inbox) > 0 || r.closing.Load() })
		}
		call, ok := r.calls.next()
		if !ok {
			break
		}
		r.at.Add(1)
		o := outcome{call: call}
		err := Recovered(fmt.Sprintf("rank %d", r.id), func() error {
			var err error
			o.reply, o.outputs, err = r.handle(call.command)
			return err
		})
		if err != nil {
			r.fail(&o, err)
		}
		if r.baton != nil { // one goroutine at a time
			r.answer(o)
		} else {
			issued <- o
		}
	}
	close(issued)
	_ = answers.Wait()             // what fails there is in the answers
	for _, s := range r.sessions { // of a failed request: nothing may write into weights that are freed next
		s.weights.close()
	}
	_ = r.ops.Sync() // nothing may use the memory any more, whatever became of it
	for _, b := range []*buffer{&r.session, &r.acts, &r.exchange} {
		r.ops.Free(b.mem)
	}
	closeOps(r.ops)
}

// closeAll closes the Ops of ranks that never began.
func closeAll(ops []engine.Ops) {
	for _, o := range ops {
		closeOps(o)
	}
}

// closeOps gives back what an Ops of a device holds of it, its stream and scratch memory. An error of the device has been an answer before.
func closeOps(ops engine.Ops) {
	if c, ok := ops.(io.Closer); ok {
		_ = c.Close()
	}
}

// answer waits for the results of a command and replies.
func (r *rank) answer(o outcome) {
	if o.outputs != nil && o.reply.Err == nil {
		err := Recovered(fmt.Sprintf("rank %d", r.id), func() error {
			var err error
			o.reply.Outputs, err = o.outputs()
			return err
		})
		if err != nil {
			r.fail(&o, err)
		}
	}
	if r.at.Add(-1) == 0 {
		r.pos.idle()
	}
	o.call.reply <- o.reply
}

// fail makes an error the reply to a command. Peers that wait for this rank must not wait for ever.
func (r *rank) fail(o *outcome, err error) {
	o.reply = Reply{Err: asError(err)}
	if open := o.call.command.Open; open == nil || open.Plan.Parts() > 1 {
		for _, c := range r.comms {
			c.Abort(err)
		}
	}
}

// asError makes an *Error of any error.
func asError(err error) *failure.Error {
	var e *failure.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errStopped):
		return &failure.Error{Code: failure.Cancelled, Text: err.Error()}
	}
	if ce := (*comm.Error)(nil); errors.As(err, &ce) {
		return &failure.Error{Code: failure.PeerLost, Text: err.Error()}
	}
	return &failure.Error{Code: failure.BadRequest, Text: err.Error()}
}

// cancel makes the session's running and later evaluations stop before their next block. It is safe at any time from any goroutine.
func (r *rank) cancel(session uint64) { r.flag(session).Store(true) }

func (r *rank) flag(session uint64) *atomic.Bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.cancelled[session]
	if f == nil {
		f = new(atomic.Bool)
		r.cancelled[session] = f
	}
	return f
}

// handle issues the work of a command. outputs, if not nil, waits for the predictions.
func (r *rank) handle(c Command) (reply Reply, outputs func() ([][]float32, error), err error) {
	switch {
	case c.Open != nil:
		reply, err = r.openSession(c.Session, *c.Open)
		return reply, nil, err
	case c.Evaluate != nil:
		s := r.sessions[c.Session]
		if s == nil {
			return reply, nil, fmt.Errorf("rank %d: session %d is not open", r.id, c.Session)
		}
		outputs, err = s.evaluate(s.env.Ops, *c.Evaluate)
		return r.report(s, false), outputs, err
	case c.Close:
		if s := r.sessions[c.Session]; s != nil {
			s.weights.close()
			err = r.ops.Sync()
			reply = r.report(s, true)
			reply.Spans = spans(s.env.Ops)
		}
		r.retire(c.Session)
		return reply, nil, err
	}
	return reply, nil, fmt.Errorf("rank %d: empty command", r.id)
}

// openSession measures what the session needs, takes the memory and prepares all entries.
func (r *rank) openSession(id uint64, o OpenCommand) (Reply, error) {
	r.pos.at("opening a session")
	model, ok := r.weights(o.Model)
	if !ok {
		return Reply{}, fmt.Errorf("rank %d: model %s is not resident", r.id, o.Model)
	}
	need, err := measure(model, o, r.comms)
	if err != nil {
		return Reply{}, err
	}
	total := int64(need.session + need.acts + need.comm)
	if o.Budget > 0 && total > o.Budget {
		return Reply{}, &failure.Error{Code: failure.OutOfMemory, Field: "latent", Text: fmt.Sprintf(
			"one evaluation needs %d MB of activations and buffers, %d MB are allowed: use a smaller picture or batch", total>>20, o.Budget>>20)}
	}
	if device, ok := r.ops.(engine.Reserver); ok {
		if err := device.Reserve(need.calls); err != nil {
			return Reply{}, &failure.Error{Code: failure.OutOfMemory, Field: "latent", Text: "reserve scratch memory for one evaluation", Cause: err}
		}
	}
	for b, bytes := range map[*buffer]int{&r.session: need.session, &r.acts: need.acts, &r.exchange: need.comm} {
		if err := b.grow(r.ops, bytes); err != nil {
			return Reply{}, err
		}
	}
	s := &rankSession{
		id: id, model: model, open: o, stop: r.flag(id), pos: r.pos, peek: r.calls.peek, comms: r.comms, skips: r.skips,
		env:  dit.Env{Ops: r.ops, Arena: engine.NewArena("session", r.session.mem, r.session.bytes), DType: o.DType},
		act:  engine.NewArena("activations", r.acts.mem, r.acts.bytes),
		comm: engine.NewArena("communication", r.exchange.mem, r.exchange.bytes),
	}
	if o.Profile != 0 {
		s.env.Ops, s.comms = measured(r.ops, r.comms, r.id, o.Profile)
	}
	if poisoner, ok := r.ops.(interface{ Watch(*engine.Arena) }); ok { // deferred execution poisons what is released
		poisoner.Watch(s.env.Arena)
		poisoner.Watch(s.act)
		poisoner.Watch(s.comm)
	}
	s.weights = newGatherer(model.Shards(), s.comms[plan.AxisShard])
	r.sessions[id] = s // before anything is gathered: serve waits for gathers of all sessions
	if err := s.prepare(); err != nil {
		return Reply{}, err
	}
	if err := r.ops.Sync(); err != nil { // the other lane of a folded stage may write into stores of this one from now on
		return Reply{}, err
	}
	reply := r.report(s, false)
	reply.PeakBytes = total
	return reply, nil
}

// retire forgets a session.
func (r *rank) retire(id uint64) {
	if s := r.sessions[id]; s != nil {
		s.weights.close()
	}
	delete(r.sessions, id)
	r.skips.forget(id)
	r.mu.Lock()
	delete(r.cancelled, id)
	r.mu.Unlock()
}

// grow makes the buffer at least n bytes long.
func (b *buffer) grow(ops engine.Ops, n int) error {
	if n <= b.bytes {
		return nil
	}
	ops.Free(b.mem)
	b.mem, b.bytes = engine.Buf{}, 0
	mem, err := ops.Alloc(n)
	if err != nil {
		return &failure.Error{Code: failure.OutOfMemory, Field: "latent", Text: fmt.Sprintf("one evaluation needs %d MB more of activations and buffers, and the system does not give them: use a smaller picture or batch", n>>20), Cause: err}
	}
	b.mem, b.bytes = mem, n
	return nil
}

// report charges a session with what was sent since the last report, and answers with all it has sent and computed so far.
// Weights in parts move beside the micro-steps and are counted at the end.
func (r *rank) report(s *rankSession, last bool) Reply {
	out := Reply{Traffic: make([]comm.Traffic, plan.AxisCount), Tokens: s.tokens}
	for a, c := range r.comms {
		if plan.Axis(a) == plan.AxisShard && !last {
			continue
		}
		now, was, sum := c.Traffic(), r.charged[a], &s.sent[a]
		sum.Calls, sum.Bytes, sum.Wait = sum.Calls+now.Calls-was.Calls, sum.Bytes+now.Bytes-was.Bytes, sum.Wait+now.Wait-was.Wait
		sum.Posted += now.Posted - was.Posted
		r.charged[a], out.Traffic[a] = now, *sum
	}
	return out
}
