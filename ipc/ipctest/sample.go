package ipctest

import (
	"context"
	"errors"
	"maps"
	"slices"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Sample runs one sampler on tensors and returns the message with the result. Progress goes to progress, which may be
// nil.
//
// Tensors that have a hash are sent without their data first, and with it if the worker lacks one of them.
func Sample(ctx context.Context, c client.Client, req *message.SampleRequest,
	progress func(*message.SampleReply),
) (*message.SampleReply, error) {
	if bare := light(req); bare != nil {
		last, err := sampleOnce(ctx, c, bare, progress)
		var e *fault.Error
		if !errors.As(err, &e) || e.Public() != fault.MissingTensors {
			return last, err
		}
	}
	return sampleOnce(ctx, c, req, progress)
}

func sampleOnce(ctx context.Context, c client.Client, req *message.SampleRequest,
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

// light returns the request without the data of tensors that have a hash, or nil if there are none.
func light(q *message.SampleRequest) *message.SampleRequest {
	any, out := false, *q
	bare := func(t *wire.Tensor) *wire.Tensor {
		if t == nil || t.Hash == "" {
			return t
		}
		any = true
		return &wire.Tensor{Tensor: array.Tensor{DType: t.DType, Shape: t.Shape}, Hash: t.Hash}
	}
	entries := func(list []message.CondRef) []message.CondRef {
		list = slices.Clone(list)
		for i := range list {
			list[i].ModelConds = maps.Clone(list[i].ModelConds)
			for k, t := range list[i].ModelConds {
				list[i].ModelConds[k] = bare(t)
			}
			list[i].Mask = bare(list[i].Mask)
		}
		return list
	}
	out.Sigmas, out.Noise, out.Latent, out.Mask = bare(q.Sigmas), bare(q.Noise), bare(q.Latent), bare(q.Mask)
	out.Conds.Positive = entries(q.Conds.Positive)
	if q.Conds.Negative != nil {
		list := entries(*q.Conds.Negative)
		out.Conds.Negative = &list
	}
	if q.Dual != nil {
		dual := *q.Dual
		dual.Middle = entries(dual.Middle)
		out.Dual = &dual
	}
	out.Model.Patches = slices.Clone(q.Model.Patches)
	for i := range out.Model.Patches {
		t := &out.Model.Patches[i].Tensors
		t.Up, t.Down, t.Value = bare(t.Up), bare(t.Down), bare(t.Value)
	}
	out.Model.Nets = slices.Clone(q.Model.Nets)
	for i := range out.Model.Nets {
		out.Model.Nets[i].Hint = bare(out.Model.Nets[i].Hint)
	}
	if !any {
		return nil
	}
	return &out
}

// Upload stores bytes in the bucket patchbay-blobs under a name. For a day requests may refer to them with {"$bytes":
// ref} in place of an input file.
func Upload(ctx context.Context, c *client.NATSClient, name string, data []byte) (*wire.Ref, error) {
	store, err := bulk.NewObjects(c.Conn())
	if err != nil {
		return nil, err
	}
	return store.Put(ctx, name, data)
}
