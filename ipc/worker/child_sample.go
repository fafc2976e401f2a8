package worker

import (
	"context"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// Sample implements Executor: the request is sent to the worker, whose messages come back.
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

// Load implements Executor.
func (c *Child) Load(ctx context.Context, req *message.LoadRequest) (*message.LoadReply, error) {
	out := &message.LoadReply{}
	_, err := c.ask(ctx, message.VerbLoad, req, out)
	return out, err
}
