package graph

import (
	"context"

	"patchbay/node/value"
	"patchbay/parallel"
)

// Sample runs a request of a host. The latent of the result stays in model space. Errors are *Failure; Field names the
// part of the message.
func (r *Runner) Sample(ctx context.Context, q *value.HostRequest,
	observe func(value.HostProgress) error,
) (*parallel.Result, error) {
	l := q.Request.Latent
	if err := r.bounds.Host([]int{l.B, l.C, l.Y, l.X}, len(q.Request.Sigmas)); err != nil {
		return nil, err
	}
	return r.store.Sample(ctx, q, observe)
}

// Load makes the weights of a model file resident for a plan.
func (r *Runner) Load(ctx context.Context, f value.ModelFile, plan string) (parallel.Loaded, error) {
	return r.store.Load(ctx, f, plan)
}

// FreeModel drops the resident weights of a model file and returns their bytes, 0 if there were none. It waits for a
// running request.
func (r *Runner) FreeModel(name string) (int64, error) { return r.store.FreeModel(name) }

// FreeModels drops the resident weights of all diffusion models and returns their bytes.
func (r *Runner) FreeModels() int64 { return r.store.FreeModels() }
