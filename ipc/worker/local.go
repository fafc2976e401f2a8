package worker

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/plan"
	"patchbay/parallel/resume"
)

// Local is the Executor of a worker: jobs run in this process, on the devices of a graph.Runner.
type Local struct {
	name   string
	runner *graph.Runner
	idle   time.Duration
	// Resume says where evaluations are kept for later attempts, each job's in a folder named by its id; nil: nowhere.
	Resume *resume.Folder

	mu   sync.Mutex
	busy int
	rest *time.Timer // calls giveBack after idle; nil: no request has ended yet
}

// NewLocal returns an executor on a runner, which the caller must close. Models and caches are dropped after this long
// without a request; idle 0: never.
func NewLocal(name string, runner *graph.Runner, idle time.Duration) *Local {
	return &Local{name: name, runner: runner, idle: idle}
}

// begin notes that a request is running, until the returned function is called.
func (l *Local) begin() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy++
	if l.rest != nil {
		l.rest.Stop()
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.busy--; l.busy == 0 && l.idle > 0 {
			l.rest = time.AfterFunc(l.idle, l.giveBack)
		}
	}
}

// giveBack drops models and caches, and returns their memory to the system, unless a request is running.
func (l *Local) giveBack() {
	l.mu.Lock()
	busy := l.busy
	l.mu.Unlock()
	if busy == 0 {
		l.runner.Free()
		debug.FreeOSMemory()
	}
}

func (l *Local) Name() string { return l.name }

func (l *Local) Ready(ctx context.Context) error { return ctx.Err() }

func (l *Local) Run(ctx context.Context, task jobs.Task, sink jobs.Sink) (*jobs.Outcome, error) {
	defer l.begin()()
	w := task.Graph
	if w == nil {
		var fail *fault.Error
		if w, fail = message.ParseWorkflow(task.Req.Workflow); fail != nil {
			return nil, fail
		}
	}
	job := nodeJob(task.Req, w)
	job.Alone = task.Attempt > 1
	if l.Resume != nil {
		logs := *l.Resume
		logs.Name = task.Req.ID
		job.Resume = &logs
	}
	out := &jobs.Outcome{}
	res, err := l.runner.Run(ctx, job, func(ev graph.Event) {
		if ev.Type == "preview" {
			sink.Preview(ev.Node, ev.Blob)
			return
		}
		for _, o := range ev.Files {
			out.Files = append(out.Files, message.FileOf(o))
			if sink.File != nil {
				sink.File(out.Files[len(out.Files)-1])
			}
		}
		sink.Event(message.Event{Type: ev.Type, Node: ev.Node, Data: ev.Data})
	})
	out.UI = res.UI
	switch {
	case err == nil:
		out.Metrics = metricsOf(res)
	case len(res.Warnings) > 0: // they may be why it failed
		out.Metrics = map[string]any{"warnings": res.Warnings}
	}
	return out, err
}

// nodeJob converts a request to the form that package node takes.
func nodeJob(req *message.RunRequest, w *graph.Workflow) graph.Job {
	job := graph.Job{
		ID: req.ID, Workflow: w, Targets: req.Targets, Inputs: req.Inputs, Plan: req.Plan, Preview: req.Preview,
		NoMetadata: req.NoMetadata, Profile: req.Profile, Outputs: req.Validated,
	}
	if req.ExtraPNG != nil {
		job.ExtraPNGInfo = map[string]any{}
		for _, k := range req.ExtraPNG.Keys() {
			job.ExtraPNGInfo[k] = req.ExtraPNG.At(k)
		}
	}
	return job
}

func metricsOf(r *graph.Result) map[string]any {
	stats := []any{}
	for _, s := range r.Stats {
		stats = append(stats, statsOf(s))
	}
	out := map[string]any{
		"timings": timingsOf(r.Timings), "executed": orEmpty(r.Executed), "cached": orEmpty(r.Cached), "stats": stats,
	}
	nodes := []any{}
	for _, n := range r.Nodes[:min(len(r.Nodes), maxNodeTimes)] {
		nodes = append(nodes, map[string]any{
			"node": n.ID, "class": n.Class, "phase": n.Phase.String(), "seconds": n.Total, "load_seconds": n.Load,
		})
	}
	out["nodes"] = nodes
	if len(r.Warnings) > 0 {
		out["warnings"] = r.Warnings
	}
	return out
}

// maxNodeTimes bounds the nodes in a metrics event, which the record of the job repeats.
const maxNodeTimes = 256

func timingsOf(t graph.Timings) map[string]any {
	return map[string]any{
		"total": t.Total, "load": t.Load, "text": t.Text, "denoise": t.Denoise, "vae": t.VAE, "other": t.Other,
		"steps": orEmpty(t.Steps),
	}
}

// orEmpty returns a copy of s that is never null in a message.
func orEmpty[T any](s []T) []T { return append([]T{}, s...) }

func (l *Local) Exec(ctx context.Context, req *message.ExecRequest) (*message.ExecReply, error) {
	defer l.begin()()
	inputs := map[string]any{}
	if req.Inputs != nil {
		for _, k := range req.Inputs.Keys() {
			inputs[k] = req.Inputs.At(k)
			if o, ok := inputs[k].(*pyjson.Object); ok && o.Has(message.HandleKey) {
				inputs[k] = graph.Handle{ID: o.Text(message.HandleKey)}
			}
		}
	}
	res, err := l.runner.Exec(ctx, graph.ExecRequest{
		Class: req.Class, Inputs: inputs, Want: req.Want, Files: req.Files,
		Lease: time.Duration(req.LeaseMS) * time.Millisecond, Plan: req.Plan,
	}, nil)
	if err != nil {
		return nil, err
	}
	out := &message.ExecReply{Outputs: []any{}, Timings: timingsOf(res.Timings), Warnings: res.Warnings}
	for _, v := range res.Outputs {
		if h, ok := v.(graph.Handle); ok {
			v = pyjson.NewObject(message.HandleKey, h.ID, "type", h.Type, "expires", h.Expires.UnixMilli())
		}
		out.Outputs = append(out.Outputs, v)
	}
	for _, f := range res.Files {
		out.Files = append(out.Files, message.FileOf(f))
	}
	return out, nil
}

func (l *Local) Free(_ context.Context, req *message.FreeRequest) (*message.FreeReply, error) {
	out := &message.FreeReply{}
	if len(req.Handles)+len(req.Models) == 0 {
		out.Freed, out.Bytes = l.runner.FreeHandles(), l.runner.FreeModels()
		l.runner.Free()
		debug.FreeOSMemory()
		return out, nil
	}
	for _, h := range req.Handles {
		if l.runner.FreeHandle(h) {
			out.Freed++
		}
	}
	for _, m := range req.Models {
		n, err := l.runner.FreeModel(m)
		if err != nil {
			return nil, err
		}
		out.Bytes += n
	}
	return out, nil
}

// Classes returns what a Service or a worker knows of node classes, by a catalogue and folders. index, of the files in
// roots, is needed if jobs are kept: it tells jobs that read the same files from jobs that only use the same file
// names. also returns the names of model files that other daemons have. Both may be nil.
func Classes(cat *graph.Catalogue, roots files.Roots, index *files.Index,
	also func(kind string) []string,
) serve.Classes {
	every := roots
	every.Also = also
	n := serve.Classes{
		Validate: func(req *message.RunRequest, w *graph.Workflow) ([]string, map[string]any, error) {
			if _, err := plan.Parse(req.Plan); err != nil {
				return nil, nil, fault.New(fault.BadRequest, "field plan: %v", err)
			}
			outputs, failure := graph.Validate(cat, every, nodeJob(req, w))
			switch {
			case failure == nil:
				return outputs, nil, nil
			case len(outputs) == 0:
				if all := w.Unknown(cat); all.Len() > 1 { // ComfyUI's answer only has the first
					failure.Extra = map[string]any{"unknown_classes": all}
				}
				return nil, nil, failure
			}
			return outputs, failure.NodeErrors, nil
		},
		Describe: func(class string) map[string]any { return cat.ObjectInfo(roots, class) },
		Model: func(f value.ModelFile) (*message.ModelReply, error) {
			m, err := value.OpenFile(roots, f)
			if err != nil {
				return nil, roots.Publish(fault.From(err))
			}
			out := &message.ModelReply{Family: m.Spec.Family, Latent: latentSpace(m.Format)}
			out.Sampling.Bases, out.Sampling.Shift, out.Sampling.Multiplier = m.Sampling.Classes()
			return out, nil
		},
		Models: func() map[string]any {
			out := map[string]any{}
			for _, kind := range files.Kinds() {
				out[kind] = orEmpty(roots.List(kind))
			}
			return out
		},
	}
	if index != nil {
		n.Needs = func(req *message.RunRequest, w *graph.Workflow) []files.NeededFile {
			return graph.Needs(cat, index, nodeJob(req, w))
		}
	}
	return n
}
