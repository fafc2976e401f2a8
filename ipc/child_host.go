package ipc

import (
	"context"
	"errors"

	"patchbay/ipc/wire"
)

// Sample implements Executor: the request is sent to the worker, whose messages come back.
func (c *Child) Sample(ctx context.Context, q *SampleRequest, emit func(*SampleReply)) (*SampleReply, error) {
	p := c.current()
	if p == nil {
		return nil, wire.Errorf(wire.ErrWorkerLost, "%s is not running", c.cfg.Name)
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
		m.hold.Release()
	})
	var refused *wire.Error
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case err != nil:
		return nil, c.lost(p, err)
	}
	return last, nil
}

// Load implements Executor.
func (c *Child) Load(ctx context.Context, req *LoadRequest) (*LoadReply, error) {
	out := &LoadReply{}
	_, err := c.ask(ctx, VerbLoad, req, out)
	return out, err
}
