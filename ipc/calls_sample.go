package ipc

import (
	"context"
	"errors"
	"fmt"

	"patchbay/ipc/wire"
	"patchbay/node"
)

// Sample runs one sampler on tensors and returns the message with the result. Progress goes to progress, which may be nil.
//
// Tensors that have a hash (Tensor.Name) are sent without their data first, and with it when the worker lacks one of them.
func Sample(ctx context.Context, c Client, req *SampleRequest, progress func(*SampleReply)) (*SampleReply, error) {
	if light := req.light(); light != nil {
		last, err := sampleOnce(ctx, c, light, progress)
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != wire.ErrMissing {
			return last, err
		}
	}
	return sampleOnce(ctx, c, req, progress)
}

func sampleOnce(ctx context.Context, c Client, req *SampleRequest, progress func(*SampleReply)) (*SampleReply, error) {
	r, err := c.Ask(ctx, VerbSample, "", req)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	last, err := followSample(ctx, r, func(m *SampleReply) {
		if m.own(); progress != nil {
			progress(m)
		}
	})
	if last != nil {
		last.own()
	}
	return last, err
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

func sampleReplyOf(o *node.Object) (*SampleReply, error) {
	m := &SampleReply{}
	metrics, _ := o.Get("metrics")
	if err := wire.BindReply(wire.Without(wire.Without(o, "error"), "metrics"), m); err != nil {
		return m, err
	}
	if mo, ok := metrics.(*node.Object); ok {
		m.Metrics = map[string]any{}
		for _, k := range mo.Keys() {
			m.Metrics[k], _ = mo.Get(k)
		}
	}
	if v, _ := o.Get("error"); v != nil {
		m.Error = wire.ErrorFrom(v, o)
	}
	if m.Type == "" {
		return m, fmt.Errorf("read reply: a message of a run without a type")
	}
	return m, nil
}

// Load makes the weights of a model resident.
func Load(ctx context.Context, c Client, req *LoadRequest) (LoadReply, error) {
	var out LoadReply
	err := askOne(ctx, c, VerbLoad, "", req, &out)
	return out, err
}

// Free gives up handles or models, or with none named everything.
func Free(ctx context.Context, c Client, req *FreeRequest) (FreeReply, error) {
	var out FreeReply
	err := askOne(ctx, c, VerbFree, "", req, &out)
	return out, err
}
