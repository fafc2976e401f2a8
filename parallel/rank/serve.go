package rank

import (
	"fmt"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

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
		if r.scheduler != nil && len(r.calls.peeked) == 0 {
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
		s.weights.close()
	}
	_ = r.Ops.Sync() // nothing may use the memory afterwards, even after an error
	for _, b := range []*Buffer{&r.session, &r.acts, &r.exchange, &r.brought} {
		r.Ops.Free(b.Mem)
	}
	CloseOps(r.Ops, r.beside)
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
			s.weights.close()
			err = r.Ops.Sync()
			reply = r.report(s, true)
			reply.Spans = spans(s.env.Ops)
		}
		r.retire(c.Session)
		return reply, nil, err
	}
	return reply, nil, fmt.Errorf("rank %d: empty command", r.id)
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
		network: network{
			id: id, model: model, open: o, comms: r.comms, lanes: r.lanes, pos: r.Pos,
			stop: func() bool { return r.Stopped(id) },
			memory: memory{
				env:  dit.Env{Ops: r.Ops, Arena: engine.NewArena("session", r.session.Mem, r.session.Bytes), DType: o.DType},
				act:  engine.NewArena("activations", r.acts.Mem, r.acts.Bytes),
				comm: engine.NewArena("communication", r.exchange.Mem, r.exchange.Bytes),
			},
		},
		control: control{resident: r.weights}, peek: r.calls.peek,
	}
	if c, ok := r.Ops.(engine.Chooser); ok {
		s.usage.chosen = c.Chosen()
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
	if err := r.bring(s); err != nil {
		return Reply{}, err
	}
	r.sessions[id] = s // before anything is brought: serve waits for what all sessions bring
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

// report attributes to a session what was sent since the last report, and returns a reply with all that it has sent and
// computed so far. Weights that are brought move beside the micro-steps and are counted in the last report only.
func (r *Rank) report(s *session, last bool) Reply {
	out := Reply{Traffic: make([]comm.Traffic, plan.AxisCount), Tokens: s.usage.tokens}
	for a, c := range r.comms {
		if (plan.Axis(a) == plan.AxisShard || plan.Axis(a) == plan.AxisStream) && !last {
			continue
		}
		now, was, sum := c.Traffic(), r.charged[a], &s.usage.sent[a]
		if plan.Axis(a) == plan.AxisStream {
			now = s.weights.traffic()
			was = *sum
		}
		sum.Add(now.Less(was))
		r.charged[a], out.Traffic[a] = now, *sum
	}
	if c, ok := r.Ops.(engine.Chooser); ok && last {
		out.Chosen = c.Chosen()
		for way, before := range s.usage.chosen {
			out.Chosen[way] -= before
		}
	}
	return out
}
