package ipctest

import (
	"context"

	"patchbay/ipc/bulk"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// Sample runs one sampler on tensors and returns the message with the result. Progress goes to progress, which may be
// nil.
func Sample(ctx context.Context, c client.Client, req *message.SampleRequest,
	progress func(*message.SampleReply),
) (*message.SampleReply, error) {
	r, err := c.Ask(ctx, message.VerbSample, "", req)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	last, err := client.FollowSample(ctx, r, client.Silence, func(m *message.SampleReply) {
		if detach(m); progress != nil {
			progress(m)
		}
	})
	if last != nil {
		detach(last)
	}
	return last, err
}

// detach copies what is in shared memory and releases that memory.
func detach(m *message.SampleReply) {
	if m.Hold == nil {
		return
	}
	bulk.Disown(m.X, m.Hold)
	bulk.Disown(m.X0, m.Hold)
	m.JPEG, _ = bulk.Disown(m.JPEG, m.Hold).([]byte)
	m.Hold.Release()
	m.Hold = nil
}

// Load makes the weights of a model resident.
func Load(ctx context.Context, c client.Client, req *message.LoadRequest) (message.LoadReply, error) {
	var out message.LoadReply
	err := client.AskOne(ctx, c, message.VerbLoad, "", req, &out)
	return out, err
}
