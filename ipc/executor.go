package ipc

import (
	"context"
	"path"

	"patchbay/node/files"
)

// Executor runs jobs one at a time: in this process (Local) or in a supervised child (Child).
type Executor interface {
	// Name is how records and logs call it.
	Name() string
	// Ready waits until a job can be given; it fails only when ctx ends.
	Ready(ctx context.Context) error
	// Run runs one job and returns when nothing of it is left running. Events and previews go to sink in order. When ctx ends it stops within a step and
	// returns the cause. A worker that died is worker_lost.
	Run(ctx context.Context, task Task, sink Sink) (*Outcome, error)
	// Exec runs one node; inputs and results are decoded values (see ExecRequest).
	Exec(ctx context.Context, req *ExecRequest) (*ExecReply, error)
	// Sample runs one sampling request of a host. Progress goes to emit in order, from one goroutine; what is returned is the last message ("done"). When
	// ctx ends it stops within a step and returns the cause.
	Sample(ctx context.Context, req *SampleRequest, emit func(*SampleReply)) (*SampleReply, error)
	// Load makes the weights of a model resident.
	Load(ctx context.Context, req *LoadRequest) (*LoadReply, error)
	// Free gives up handles or models, or with none named all models and caches.
	Free(ctx context.Context, req *FreeRequest) (*FreeReply, error)
}

// Task is one attempt at a job.
type Task struct {
	Req     *RunRequest
	Attempt int
}

// Sink receives what happens during a run.
type Sink struct {
	Event   func(Event) // type, node and data are set
	Preview func(nodeID string, jpeg []byte)
}

// Outcome is what a finished run made.
type Outcome struct {
	Files   []File
	Metrics map[string]any            // timings, executed, cached, stats: the data of the metrics event
	UI      map[string]map[string]any // by node: what its executed event carries apart from files

	hold *hold // shared memory that Files lie in
}

// File is one output with its contents.
type File struct {
	Ref  OutputRef `json:"ref"`
	Data []byte    `json:"data"`
}

// fileOf describes an output of package node.
func fileOf(o files.Output) File {
	return File{
		Ref: OutputRef{
			Node: o.Node, Index: o.Index, Kind: o.Kind, Type: o.Type, Prefix: o.Prefix, Ext: o.Ext,
			Width: o.Width, Height: o.Height, Bytes: len(o.Data), CRC32C: checksum(o.Data),
		},
		Data: o.Data,
	}
}

// output is the inverse of fileOf.
func (f File) output() files.Output {
	r := f.Ref
	return files.Output{
		Node: r.Node, Index: r.Index, Kind: r.Kind, Prefix: r.Prefix, Type: r.Type, Ext: r.Ext,
		Data: f.Data, Width: r.Width, Height: r.Height,
	}
}

// Save writes a file into a folder under the name that ComfyUI would choose, and returns that name relative to the folder. It never replaces a file.
func (f File) Save(dir string) (string, error) {
	ref, err := files.Commit(dir, f.output())
	if err != nil {
		return "", storeError(err)
	}
	return path.Join(ref.Subfolder, ref.Filename), nil
}
