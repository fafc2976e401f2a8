package jobs

import (
	"context"

	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/node/graph"
)

// Executor runs jobs, as many at a time as a Dispatcher lists it: in this process (worker.Local) or in a supervised
// child process (worker.Child).
type Executor interface {
	// Name is what records and logs call the executor.
	Name() string
	// Ready waits until the executor can take a job. It fails only when ctx ends.
	Ready(ctx context.Context) error
	// Run runs one job and returns once no part of it is running any more. Events and previews go to sink in order.
	// When ctx ends, Run stops within a step and returns the cause. An Outcome beside an error is what was finished
	// before it; nil means nothing. The death of the worker is reported as worker_lost.
	Run(ctx context.Context, task Task, sink Sink) (*Outcome, error)
	// Exec runs one node; inputs and results are decoded values (see ExecRequest).
	Exec(ctx context.Context, req *message.ExecRequest) (*message.ExecReply, error)
	// Sample runs one sampling request of a host. Progress goes to emit in order, from one goroutine; the result is
	// the last message ("done"). When ctx ends, Sample stops within a step and returns the cause.
	Sample(ctx context.Context, req *message.SampleRequest, emit func(*message.SampleReply)) (*message.SampleReply, error)
	// Load makes the weights of a model resident.
	Load(ctx context.Context, req *message.LoadRequest) (*message.LoadReply, error)
	// Free releases handles or models; if none are named, all models and caches.
	Free(ctx context.Context, req *message.FreeRequest) (*message.FreeReply, error)
}

// Task is one attempt at a job.
type Task struct {
	Req     *message.RunRequest
	Attempt int
	Graph   *graph.Workflow // of Req, which the executor may change; nil: it is still to be parsed
}

// Sink receives what happens during a run.
type Sink struct {
	Event   func(message.Event) // type, node and data are set
	Preview func(nodeID string, jpeg []byte)
	// File receives what a node has made before the node's executed event, so that its files need not wait for the end
	// of the run. The Outcome has all files again, in the same order, and those that did not come before. nil: files
	// come with the Outcome only.
	File func(message.File)
}

// Outcome is what a run produced.
type Outcome struct {
	Files   []message.File
	Metrics map[string]any            // timings, executed, cached, stats: the data of the metrics event
	UI      map[string]map[string]any // by node: what its executed event carries besides files

	Hold *bulk.Hold // shared memory in which the data of Files lies
}
