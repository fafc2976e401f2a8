package worker

import (
	"context"
	"errors"
	"time"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/client"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Run implements Executor: it sends the job to the worker and passes its events on. If the worker has ended since
// Ready, which may be long ago when jobs are few, the job waits for the next process.
func (c *Child) Run(ctx context.Context, task jobs.Task, sink jobs.Sink) (*jobs.Outcome, error) {
	p, err := c.next(ctx)
	if err != nil {
		return nil, err
	}
	req := *task.Req
	req.UniqueKey, req.UniqueMS, req.Number, req.ExtraData = "", 0, 0, nil
	req.QueueTTLMS, req.DeadlineMS, req.NotBefore, req.Client, req.Front = 0, 0, 0, nil, false // the daemon handles these
	req.Attempt = task.Attempt
	replies, err := p.client.Ask(ctx, message.VerbRun, "", &req)
	if err != nil {
		return nil, c.lost(p, err)
	}
	defer replies.Close()
	done := make(chan struct{})
	defer close(done)
	go c.stopOn(ctx, p, req.ID, done)
	var end *message.Event
	col := &client.Collector{
		Silence: -1, // Supervise watches the process
		Preview: sink.Preview, File: sink.File,
		Event: func(ev message.Event) {
			if ev.Type == typeEnded {
				end = &ev
				return
			}
			sink.Event(ev)
		},
	}
	defer func() { col.Hold.Release() }()
	_, err = col.RunHeld(context.WithoutCancel(ctx), replies)
	switch {
	case err != nil:
		return nil, c.fault(p, err)
	case end == nil:
		return nil, fault.New(fault.Internal, "%s ended the job without saying how", c.cfg.Name)
	}
	out := &jobs.Outcome{
		Files: col.Files, Metrics: mapOf(end.Data["metrics"]), UI: map[string]map[string]any{}, Hold: col.Hold,
	}
	col.Hold = nil
	for node, ui := range mapOf(end.Data["ui"]) {
		out.UI[node] = mapOf(ui)
	}
	if end.Error != nil {
		return out, end.Error
	}
	return out, nil
}

// mapOf returns the fields of a decoded map; nil if v is none.
func mapOf(v any) map[string]any {
	o, ok := v.(*pyjson.Object)
	if !ok {
		return nil
	}
	out := make(map[string]any, o.Len())
	for _, k := range o.Keys() {
		out[k] = o.At(k)
	}
	return out
}

// Sample implements Executor: it sends the request to the worker and passes its messages on.
func (c *Child) Sample(ctx context.Context, q *message.SampleRequest,
	emit func(*message.SampleReply),
) (*message.SampleReply, error) {
	p, err := c.running()
	if err != nil {
		return nil, err
	}
	replies, err := p.client.Ask(ctx, message.VerbSample, "", q)
	if err != nil {
		return nil, c.lost(p, err)
	}
	defer replies.Close()
	done := make(chan struct{})
	defer close(done)
	go c.stopOn(ctx, p, q.ID, done)
	last, err := client.FollowSample(context.WithoutCancel(ctx), replies, 0, func(m *message.SampleReply) {
		emit(m)
		m.Hold.Release()
	})
	if err != nil {
		return nil, c.fault(p, err)
	}
	return last, nil
}

// stopOn cancels the job in the worker when ctx ends, and kills the worker if the job does not stop within Grace.
func (c *Child) stopOn(ctx context.Context, p *childProcess, job string, done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	if r, err := p.client.Ask(ctx, message.VerbCancel, job, nil); err == nil {
		defer r.Close()
	}
	select {
	case <-done:
	case <-p.Dead():
	case <-time.After(c.cfg.Grace):
		p.Kill("it did not stop a cancelled job within " + c.cfg.Grace.String())
	}
}

// running returns the process that answers. If there is none, the error is why the last one ended.
func (c *Child) running() (*childProcess, error) {
	c.mu.Lock()
	p, last := c.proc, c.last
	c.mu.Unlock()
	switch {
	case p != nil:
		return p, nil
	case last != nil:
		return nil, c.lost(last, errors.New("it is gone"))
	}
	return nil, fault.New(fault.WorkerLost, "%s is not running", c.cfg.Name)
}

// fault returns err if the worker has answered with it, or else why the worker is lost.
func (c *Child) fault(p *childProcess, err error) error {
	if refused, ok := errors.AsType[*fault.Error](err); ok {
		return refused
	}
	return c.lost(p, err)
}

// lost waits for the end of a process whose connection broke, kills it after a second, and returns why it ended.
func (c *Child) lost(p *childProcess, err error) error {
	select {
	case <-p.Dead():
	case <-time.After(time.Second): // the link is broken but the process lives: it must not stay
		p.Kill("its link broke: " + err.Error())
		<-p.Dead()
	}
	c.drop(p)
	return p.Cause()
}

func (c *Child) Exec(ctx context.Context, req *message.ExecRequest) (out *message.ExecReply, err error) {
	out = &message.ExecReply{}
	out.Hold, err = c.ask(ctx, message.VerbExec, req, out)
	return out, err
}

func (c *Child) Free(ctx context.Context, req *message.FreeRequest) (*message.FreeReply, error) {
	out := &message.FreeReply{}
	_, err := c.ask(ctx, message.VerbFree, req, out)
	return out, err
}

func (c *Child) Load(ctx context.Context, req *message.LoadRequest) (*message.LoadReply, error) {
	out := &message.LoadReply{}
	_, err := c.ask(ctx, message.VerbLoad, req, out)
	return out, err
}

// ask sends a request and decodes its only reply into out. The caller must release the Hold, in whose memory the bytes
// in out lie: nil for replies without any, which are all but those to exec.
func (c *Child) ask(ctx context.Context, verb string, req, out any) (*bulk.Hold, error) {
	p, err := c.running()
	if err != nil {
		return nil, err
	}
	r, err := p.client.Ask(ctx, verb, "", req)
	if err != nil {
		return nil, c.lost(p, err)
	}
	m, err := r.OneHeld(ctx)
	switch _, refused := errors.AsType[*fault.Error](err); {
	case err != nil && !refused && ctx.Err() != nil:
		return nil, fault.New(fault.Cancelled, "the request was given up")
	case err != nil:
		return nil, c.fault(p, err)
	}
	return m.Hold, wire.BindReply(m.Fields, out)
}
