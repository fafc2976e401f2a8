package ipc

import (
	"context"
	"errors"
	"maps"
	"slices"

	"patchbay/node/pyjson"
)

// The functions here are the verbs as calls on a Client.

// Submit queues a job.
func Submit(ctx context.Context, c Client, req *RunRequest) (Receipt, error) {
	var out Receipt
	err := askOne(ctx, c, VerbSubmit, "", req, &out)
	return out, err
}

// Run starts a job and feeds col until it ends. It returns the terminal event.
func Run(ctx context.Context, c Client, req *RunRequest, col *Collector) (*Event, error) {
	r, err := c.Ask(ctx, VerbRun, "", req)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return col.Run(ctx, r)
}

// Status returns the record of a job.
func Status(ctx context.Context, c Client, job string) (Record, error) {
	var out recordReply
	err := askOne(ctx, c, VerbStatus, job, nil, &out)
	return out.Record, err
}

// Follow feeds col with the events of a job from a sequence number on, and with its files if they are wanted, until it ends.
func Follow(ctx context.Context, c Client, job string, from uint64, files bool, col *Collector) (*Event, error) {
	r, err := c.Ask(ctx, VerbStatus, job, jobRequest{Job: job, Follow: true, From: from, Outputs: files})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return col.Run(ctx, r)
}

// Fetch returns the files of a job that is done.
func Fetch(ctx context.Context, c Client, job string) ([]File, error) {
	r, err := c.Ask(ctx, VerbStatus, job, jobRequest{Job: job, Outputs: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	col := &Collector{}
	_, err = col.Run(ctx, r)
	return col.Files, err
}

// Cancel cancels a job; false if it had ended.
func Cancel(ctx context.Context, c Client, job string) (bool, State, error) {
	var out cancelReply
	err := askOne(ctx, c, VerbCancel, job, nil, &out)
	return out.Cancelled, out.State, err
}

// Retry queues a job once more that failed, was cancelled or has expired.
func Retry(ctx context.Context, c Client, job string) error {
	var out retryReply
	return askOne(ctx, c, VerbRetry, job, nil, &out)
}

// List returns the newest jobs in a state ("": all) and how many there are in each.
func List(ctx context.Context, c Client, state State, limit int) ([]Record, map[State]int, error) {
	var out struct {
		Jobs   []Record       `json:"jobs"`
		Counts map[string]int `json:"counts"`
	}
	err := askOne(ctx, c, VerbJobs, "", jobsRequest{State: string(state), Limit: limit}, &out)
	counts := map[State]int{}
	for k, v := range out.Counts {
		counts[State(k)] = v
	}
	return out.Jobs, counts, err
}

// Describe returns object_info entries by class; "" asks for all.
func Describe(ctx context.Context, c Client, class string) (*pyjson.Object, error) {
	var out struct {
		Info *pyjson.Object `json:"object_info"`
	}
	err := askOne(ctx, c, VerbDescribe, "", describeRequest{Class: class}, &out)
	return out.Info, err
}

// Models returns the model files by kind of folder.
func Models(ctx context.Context, c Client) (map[string][]string, error) {
	var out struct {
		Models map[string][]string `json:"models"`
	}
	err := askOne(ctx, c, VerbModels, "", nil, &out)
	return out.Models, err
}

func askOne(ctx context.Context, c Client, verb, job string, body, out any) error {
	r, err := c.Ask(ctx, verb, job, body)
	if err != nil {
		return err
	}
	o, err := r.One(ctx)
	if err != nil {
		return err
	}
	return bindReply(o, out)
}

// Sample runs one sampler on tensors and returns the message with the result. Progress goes to progress, which may be nil.
//
// Tensors that have a hash (Tensor.Name) are sent without their data first, and with it when the worker lacks one of them.
func Sample(ctx context.Context, c Client, req *SampleRequest, progress func(*SampleReply)) (*SampleReply, error) {
	if light := req.light(); light != nil {
		last, err := sampleOnce(ctx, c, light, progress)
		var e *Error
		if !errors.As(err, &e) || e.Code != ErrMissing {
			return last, err
		}
	}
	return sampleOnce(ctx, c, req, progress)
}

// light returns the request without the data of tensors that have a hash; nil if there are none.
func (q *SampleRequest) light() *SampleRequest {
	any, out := false, *q
	light := func(t *Tensor) *Tensor {
		if t == nil || t.Hash == "" {
			return t
		}
		any = true
		return &Tensor{DType: t.DType, Shape: t.Shape, Hash: t.Hash}
	}
	entries := func(list []CondRef) []CondRef {
		list = slices.Clone(list)
		for i := range list {
			list[i].ModelConds = maps.Clone(list[i].ModelConds)
			for k, t := range list[i].ModelConds {
				list[i].ModelConds[k] = light(t)
			}
			list[i].Mask = light(list[i].Mask)
		}
		return list
	}
	out.Sigmas, out.Noise, out.Latent, out.Mask = light(q.Sigmas), light(q.Noise), light(q.Latent), light(q.Mask)
	out.Conds.Positive = entries(q.Conds.Positive)
	if q.Conds.Negative != nil {
		list := entries(*q.Conds.Negative)
		out.Conds.Negative = &list
	}
	out.Model.Patches = slices.Clone(q.Model.Patches)
	for i := range out.Model.Patches {
		t := &out.Model.Patches[i].Tensors
		t.Up, t.Down = light(t.Up), light(t.Down)
	}
	if !any {
		return nil
	}
	return &out
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
