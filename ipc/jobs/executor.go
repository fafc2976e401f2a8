package jobs

import (
	"context"

	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
)

// Executor runs jobs, as many at a time as a Dispatcher is given it: in this process (Local) or in a supervised child
// (Child).
type Executor interface {
	// Name is how records and logs call it.
	Name() string
	// Ready waits until a job can be given; it fails only when ctx ends.
	Ready(ctx context.Context) error
	// Run runs one job and returns when nothing of it is left running. Events and previews go to sink in order. When ctx
	// ends it stops within a step and returns the cause. With an error, what is returned was finished before it; nil:
	// nothing. A worker that died is worker_lost.
	Run(ctx context.Context, task Task, sink Sink) (*Outcome, error)
	// Exec runs one node; inputs and results are decoded values (see ExecRequest).
	Exec(ctx context.Context, req *message.ExecRequest) (*message.ExecReply, error)
	// Sample runs one sampling request of a host. Progress goes to emit in order, from one goroutine; what is returned is
	// the last message ("done"). When ctx ends it stops within a step and returns the cause.
	Sample(ctx context.Context, req *message.SampleRequest, emit func(*message.SampleReply)) (*message.SampleReply, error)
	// Load makes the weights of a model resident.
	Load(ctx context.Context, req *message.LoadRequest) (*message.LoadReply, error)
	// Free gives up handles or models, or with none named all models and caches.
	Free(ctx context.Context, req *message.FreeRequest) (*message.FreeReply, error)
}

// Task is one attempt at a job.
type Task struct {
	Req     *message.RunRequest
	Attempt int
}

// Sink receives what happens during a run.
type Sink struct {
	Event   func(message.Event) // type, node and data are set
	Preview func(nodeID string, jpeg []byte)
}

// Outcome is what a finished run made.
type Outcome struct {
	Files   []message.File
	Metrics map[string]any            // timings, executed, cached, stats: the data of the metrics event
	UI      map[string]map[string]any // by node: what its executed event carries apart from files

	Hold *bulk.Hold // shared memory that Files lie in
}
