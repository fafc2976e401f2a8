package graph

import (
	"context"

	"patchbay/fault"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/request"
)

// Sample runs a request of a client. The latent of the result stays in model space. Errors are *fault.Error,
// whose Field names the part of the message.
func (r *Runner) Sample(ctx context.Context, q *value.ClientRequest,
	observe func(value.ClientProgress) error,
) (*request.Result, error) {
	l := q.Request.Latent
	if err := r.bounds.Client([]int{l.B, l.C, l.Y, l.X}, len(q.Request.Sigmas)); err != nil {
		return nil, err
	}
	result, err := r.store.Sample(ctx, q, observe)
	return result, r.public(err)
}

// Load makes the weights of a model file resident for a plan.
func (r *Runner) Load(ctx context.Context, f value.ModelFile, plan string) (value.Loaded, error) {
	loaded, err := r.store.Load(ctx, f, plan)
	return loaded, r.public(err)
}

// Forecast predicts a run of a model file under a plan; nothing is loaded.
func (r *Runner) Forecast(ctx context.Context, f value.ModelFile, plan string, p value.Picture) (*parallel.Forecast,
	error,
) {
	p = p.Usual()
	if err := r.bounds.Client([]int{p.Batch, 1, p.Height / latentScale, p.Width / latentScale}, p.Steps+1); err != nil {
		return nil, err
	}
	out, err := r.store.Forecast(ctx, f, plan, p)
	return out, r.public(err)
}

// FreeModel drops the resident weights of a model file and returns their bytes, 0 if there were none. It waits for a
// running request.
func (r *Runner) FreeModel(name string) (int64, error) {
	freed, err := r.store.FreeModel(name)
	return freed, r.public(err)
}

// public returns err as a failure without the operator's folders.
func (r *Runner) public(err error) error {
	if err == nil {
		return nil
	}
	return r.roots.Publish(fault.From(err))
}

// FreeModels drops the resident weights of all diffusion models and returns their bytes.
func (r *Runner) FreeModels() int64 { return r.store.FreeModels() }
