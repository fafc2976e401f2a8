package ipc

import (
	"context"
	"errors"
	"fmt"

	"patchbay/node/pyjson"
)

// Sample implements Executor: the request is sent to the worker, whose messages come back.
func (c *Child) Sample(ctx context.Context, q *SampleRequest, emit func(*SampleReply)) (*SampleReply, error) {
	p := c.current()
	if p == nil {
		return nil, Errorf(ErrWorkerLost, "%s is not running", c.cfg.Name)
	}
	replies, err := p.client.Ask(ctx, VerbSample, "", q)
	if err != nil {
		return nil, c.lost(p, err)
	}
	defer replies.Close()
	done := make(chan struct{})
	defer close(done)
	go c.stopOn(ctx, p, q.ID, done)
	last, err := followSample(context.WithoutCancel(ctx), replies, func(m *SampleReply) {
		emit(m)
		m.hold.release()
	})
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case err != nil:
		return nil, c.lost(p, err)
	}
	return last, nil
}

// followSample reads the replies to sample and returns the one that is "done"; the others that tell of progress go to emit, with their holds. A run that failed or was
// cancelled is its *Error.
func followSample(ctx context.Context, replies *Replies, emit func(*SampleReply)) (*SampleReply, error) {
	var last *SampleReply
	for {
		got, err := replies.next(ctx)
		if last != nil && err != nil {
			return last, nil
		}
		if err != nil {
			return nil, err
		}
		m, err := sampleReplyOf(got.fields)
		m.hold = got.hold
		switch {
		case err != nil:
			return nil, err
		case m.Error != nil:
			return nil, m.Error
		case m.Type == SampleDone:
			last = m
		case m.Type == SampleProgress:
			emit(m)
		}
	}
}

func sampleReplyOf(o *pyjson.Object) (*SampleReply, error) {
	m := &SampleReply{}
	metrics, _ := o.Get("metrics")
	if err := bindReply(without(without(o, "error"), "metrics"), m); err != nil {
		return m, err
	}
	if mo, ok := metrics.(*pyjson.Object); ok {
		m.Metrics = map[string]any{}
		for _, k := range mo.Keys() {
			m.Metrics[k], _ = mo.Get(k)
		}
	}
	if v, _ := o.Get("error"); v != nil {
		m.Error = errorFrom(v, o)
	}
	if m.Type == "" {
		return m, fmt.Errorf("read reply: a message of a run without a type")
	}
	return m, nil
}

// Load implements Executor.
func (c *Child) Load(ctx context.Context, req *LoadRequest) (*LoadReply, error) {
	out := &LoadReply{}
	_, err := c.ask(ctx, VerbLoad, req, out)
	return out, err
}
