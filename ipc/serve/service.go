package serve

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/meter"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// Classes are what follows from the node classes and the folders of files.
type Classes struct {
	// Validate refuses a workflow that cannot run, and returns the output nodes that can; it must not touch a device.
	// Where some outputs can run and others cannot, nodeErrors are ComfyUI's of the others.
	Validate func(req *message.RunRequest, w *graph.Workflow) (outputs []string, nodeErrors map[string]any, err error)
	// Needs lists the files that a validated workflow reads; nil: they are neither recorded nor checked.
	Needs func(req *message.RunRequest, w *graph.Workflow) []files.NeededFile
	// Describe returns object_info entries of one class, or of all for "". An unknown class gives an empty map.
	Describe func(class string) map[string]any
	// Model returns what the header of a diffusion model's file says.
	Model func(value.ModelFile) (*message.ModelReply, error)
	// Models returns the model files by kind of folder.
	Models func() map[string]any
	// Devices are the places for ranks.
	Devices []string
}

// ServiceConfig holds what a Service needs to answer.
type ServiceConfig struct {
	Jobs      *jobs.Table
	Outputs   *jobs.Outputs
	Executors []jobs.Executor
	Classes
	// Fetch returns the files of a job that another daemon has run; nil: there are no other daemons.
	Fetch func(ctx context.Context, job string) ([]message.File, error)
	// Webhook returns why the end of a job may not be reported to a URL; nil: to none.
	Webhook func(url string) *fault.Error
	Log     zerolog.Logger
	Meter   *meter.Meter // nil: a new one
	// Forward says that the executors are workers, which read large tensors themselves.
	Forward bool
	// Limits are what clients may ask for.
	Limits Limits
	// Heartbeat is the longest silence of a stream. 0: 2 s.
	Heartbeat time.Duration
}

// Service answers the verbs on every carrier of a daemon. It is safe for concurrent use.
type Service struct {
	*Answerer
	cfg    ServiceConfig
	next   atomic.Uint64 // of inTurn
	mu     sync.Mutex
	owners map[string]*ownership    // of handles
	places map[string]jobs.Executor // by model file: where a sample ran last
}

// NewService returns a service. Close ends its streams.
func NewService(cfg ServiceConfig) *Service {
	if cfg.Meter == nil {
		cfg.Meter = meter.New()
	}
	s := &Service{owners: map[string]*ownership{}, places: map[string]jobs.Executor{}}
	s.Answerer = NewAnswerer(AnswererConfig{
		Limits: cfg.Limits, Heartbeat: cfg.Heartbeat, Log: cfg.Log,
		Meter: cfg.Meter,
		Unknown: func(verb string) error {
			return fault.New(fault.NoVerb, "no verb %q; the verbs are %s", wire.Shown(verb),
				strings.Join(message.VerbNames(), ", "))
		},
	})
	s.Verbs = s.handlers()
	cfg.Limits, cfg.Heartbeat = s.Answerer.cfg.Limits, s.Heartbeat()
	s.cfg = cfg
	return s
}

// Owns reports whether this daemon has a job.
func (s *Service) Owns(job string) bool {
	return s.cfg.Jobs.Mine(job)
}

// handlers returns the functions that answer the verbs of the table, by name.
func (s *Service) handlers() map[string]func(*Call) error {
	return map[string]func(*Call) error{
		message.VerbRun: s.run, message.VerbSubmit: s.Once(s.submit), message.VerbStatus: s.status,
		message.VerbCancel: s.Once(s.cancel), message.VerbRetry: s.Once(s.retry), message.VerbJobs: s.Once(s.jobs),
		message.VerbMove: s.Once(s.move), message.VerbDelete: s.Once(s.remove), message.VerbPause: s.Once(s.pause),
		message.VerbDescribe: s.Once(s.describe), message.VerbModels: s.Once(s.models), message.VerbExec: s.exec,
		message.VerbSample: s.sample, message.VerbLoad: s.load, message.VerbFree: s.free, message.VerbStats: s.Once(s.stats),
	}
}
