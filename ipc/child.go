package ipc

import (
	"context"
	"errors"
	"time"
)

// Run implements Executor: the job is sent to the worker, whose events come back.
func (c *Child) Run(ctx context.Context, task Task, sink Sink) (*Outcome, error) {
	p, err := c.running()
	if err != nil {
		return nil, err
	}
	req := *task.Req
	req.QueueTTLMS, req.DeadlineMS, req.Client, req.Front = 0, 0, nil, false // the daemon sees to these
	req.Attempt = task.Attempt
	replies, err := p.client.Ask(ctx, VerbRun, "", &req)
	if err != nil {
		return nil, c.lost(p, err)
	}
	defer replies.Close()
	done := make(chan struct{})
	defer close(done)
	go c.stopOn(ctx, p, req.ID, done)
	var events []Event
	col := &Collector{
		Preview: sink.Preview,
		Event: func(ev Event) {
			switch ev.Type {
			case EventQueued, EventRetrying:
				return
			case EventMetrics, EventExecuted:
				events = append(events, ev)
				if ev.Type == EventMetrics || listsFiles(ev.Data["output"]) {
					return
				}
			}
			if !Terminal(ev.Type) {
				sink.Event(Event{Type: ev.Type, Node: ev.Node, Data: ev.Data})
			}
		},
	}
	defer func() { col.hold.release() }()
	end, err := col.run(context.WithoutCancel(ctx), replies)
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case err != nil:
		return nil, c.lost(p, err)
	case end == nil:
		return nil, Errorf(ErrInternal, "%s ended the job without saying how", c.cfg.Name)
	case end.Type == EventSuccess:
		out := outcomeOf(col.Files, events)
		out.hold, col.hold = col.hold, nil
		return out, nil
	case end.Error != nil:
		return nil, end.Error
	}
	return nil, Errorf(ErrCancelled, "the job was stopped in %s", c.cfg.Name)
}

// stopOn cancels the job in the worker when ctx ends, and kills the worker if it does not obey.
func (c *Child) stopOn(ctx context.Context, p *process, job string, done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	if r, err := p.client.Ask(ctx, VerbCancel, job, nil); err == nil {
		defer r.Close()
	}
	select {
	case <-done:
	case <-p.dead:
	case <-time.After(c.cfg.Grace):
		p.kill("it did not stop a cancelled job within " + c.cfg.Grace.String())
	}
}

// running returns the process that answers. Where it has ended between Ready and now, the error is why.
func (c *Child) running() (*process, error) {
	c.mu.Lock()
	p, last := c.proc, c.last
	c.mu.Unlock()
	switch {
	case p != nil:
		return p, nil
	case last != nil:
		return nil, c.lost(last, errors.New("it is gone"))
	}
	return nil, Errorf(ErrWorkerLost, "%s is not running", c.cfg.Name)
}

// lost waits for the end of a process whose link broke and returns why it ended.
func (c *Child) lost(p *process, err error) error {
	select {
	case <-p.dead:
	case <-time.After(time.Second): // the link is broken but the process lives: it must not stay
		p.kill("its link broke: " + err.Error())
		<-p.dead
	}
	c.drop(p)
	return p.cause
}

// Exec implements Executor.
func (c *Child) Exec(ctx context.Context, req *ExecRequest) (*ExecReply, error) {
	out := &ExecReply{}
	var err error
	out.hold, err = c.ask(ctx, VerbExec, req, out)
	return out, err
}

// Free implements Executor.
func (c *Child) Free(ctx context.Context, req *FreeRequest) (*FreeReply, error) {
	out := &FreeReply{}
	_, err := c.ask(ctx, VerbFree, req, out)
	return out, err
}

// ask asks for one reply. What it lies in is the caller's to release.
func (c *Child) ask(ctx context.Context, verb string, req, out any) (*hold, error) {
	p, err := c.running()
	if err != nil {
		return nil, err
	}
	r, err := p.client.Ask(ctx, verb, "", req)
	if err != nil {
		return nil, c.lost(p, err)
	}
	m, err := r.one(ctx)
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case err != nil && ctx.Err() != nil:
		return nil, Errorf(ErrCancelled, "the request was given up")
	case err != nil:
		return nil, c.lost(p, err)
	}
	return m.hold, bindReply(m.fields, out)
}
