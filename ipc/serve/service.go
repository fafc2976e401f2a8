package serve

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/meter"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// ServiceConfig holds what a Service needs to answer.
type ServiceConfig struct {
	Jobs      *jobs.Table
	Outputs   *jobs.Outputs
	Executors []jobs.Executor
	// Validate refuses a workflow that cannot run; it must not touch a device. Where some outputs can run and others
	// cannot, it returns ComfyUI's node_errors of the others and no error.
	Validate func(req *message.RunRequest, w *graph.Workflow) (map[string]any, error)
	// Needs lists the files that a validated workflow reads; nil: they are neither recorded nor checked.
	Needs func(req *message.RunRequest, w *graph.Workflow) []files.NeededFile
	// Describe returns object_info entries of one class, or of all for "". An unknown class gives an empty map.
	Describe func(class string) map[string]any
	// Model returns what the header of a diffusion model's file says.
	Model func(value.ModelFile) (*message.ModelReply, error)
	// Models returns the model files by kind of folder.
	Models func() map[string]any
	// Fetch returns the files of a job that another daemon has run; nil: there are no other daemons.
	Fetch func(ctx context.Context, job string) ([]message.File, error)
	Log   zerolog.Logger
	Meter *meter.Meter // nil: a new one
	// Checked says that requests come from a daemon that has validated them: workflows are not validated again.
	Checked bool
	// Forward says that the executors are workers, which read large tensors themselves.
	Forward bool
	// Limits are what clients may ask for.
	Limits Limits
	// Heartbeat is the longest silence of a stream. 0: 2 s.
	Heartbeat time.Duration
}

// Service answers the verbs on every carrier. Handle returns soon: it decodes, validates and enqueues; whatever takes
// longer runs in a goroutine of its own. It is safe for concurrent use.
type Service struct {
	cfg    ServiceConfig
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	next   atomic.Uint64 // of inTurn
	mu     sync.Mutex
	owners map[string]*ownership    // of handles
	places map[string]jobs.Executor // by model file: where a sample ran last
}

// NewService returns a service. Close ends its streams.
func NewService(cfg ServiceConfig) *Service {
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 2*time.Second)
	cfg.Limits = cfg.Limits.orPreset()
	if cfg.Meter == nil {
		cfg.Meter = meter.New()
	}
	s := &Service{cfg: cfg, owners: map[string]*ownership{}, places: map[string]jobs.Executor{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close cuts off the streams that are still under way and waits for their goroutines.
func (s *Service) Close() {
	s.stop()
	s.wg.Wait()
}

// Owns reports whether this daemon has a job.
func (s *Service) Owns(job string) bool {
	return s.cfg.Jobs.Mine(job)
}

// Handle answers one request, or starts a goroutine that will.
func (s *Service) Handle(r *Call) {
	s.cfg.Meter.Asked(r.Verb)
	r.Reply.Stream = message.VerbOf(r.Verb).Stream(r.Fields)
	s.handle(r)
}

// handle is Handle for a request that is counted: fetch comes back to it.
func (s *Service) handle(r *Call) {
	_, err := message.Guarded(func() (struct{}, error) { return struct{}{}, s.verb(r) })
	if err != nil {
		s.cfg.Log.Debug().Err(err).Str("verb", r.Verb).Msg("request refused")
		s.fail(r.Reply, err)
	}
}

func (s *Service) verb(r *Call) error {
	v := message.VerbOf(r.Verb)
	refs, err := message.RefsOf(r.Verb, r.Fields)
	switch {
	case err != nil:
		return wire.BadRequest(err)
	case len(refs) > 0:
		return s.fetch(r, refs)
	}
	if r.Fields == nil {
		if v.NeedsBody {
			return fault.New(fault.EmptyBody, "%s", message.EmptyBodyHint)
		}
		r.Fields = pyjson.NewObject()
	}
	if answer := s.handlers()[v.Name]; answer != nil {
		return answer(r)
	}
	return fault.New(fault.NoVerb, "no verb %q; the verbs are %s", wire.Shown(r.Verb),
		strings.Join(message.VerbNames(), ", "))
}

// handlers returns the functions that answer the verbs of the table, by name.
func (s *Service) handlers() map[string]func(*Call) error {
	return map[string]func(*Call) error{
		message.VerbRun: s.run, message.VerbSubmit: s.once(s.submit), message.VerbStatus: s.status,
		message.VerbCancel: s.once(s.cancel), message.VerbRetry: s.once(s.retry), message.VerbJobs: s.once(s.jobs),
		message.VerbDescribe: s.once(s.describe), message.VerbModels: s.once(s.models), message.VerbExec: s.exec,
		message.VerbSample: s.sample, message.VerbLoad: s.load, message.VerbFree: s.free, message.VerbStats: s.once(s.stats),
	}
}

// once returns a handler that sends what f returns as the only reply.
func (s *Service) once(f func(*Call) (any, error)) func(*Call) error {
	return func(r *Call) error {
		out, err := f(r)
		if err == nil {
			s.sent(r.Reply.Last(out))
		}
		return err
	}
}

// fetch fetches, in a goroutine, the bytes that a request refers to, and then handles it.
func (s *Service) fetch(r *Call, refs []*wire.Ref) error {
	total := 0
	for _, ref := range refs {
		if r.pull == nil || ref.Kind == wire.RefShm {
			return fault.New(fault.BadRequest, "a reference of kind %s: only %s", ref.Kind,
				"shm with the frame's descriptors works on a unix socket, stream on NATS")
		}
		if total += ref.Bytes; total > wire.MaxRegion {
			return fault.New(fault.TooLarge, "the request refers to more than %d bytes", wire.MaxRegion)
		}
	}
	if r.Reply.Detach != nil {
		r.Reply.Detach()
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, bulk.Patience)
		defer cancel()
		err := message.ReplaceRefs(r.Verb, r.Fields, func(ref *wire.Ref) ([]byte, error) {
			g, err := r.pull(ctx, ref)
			if err != nil {
				return nil, err
			}
			r.hold = r.hold.Join(bulk.Holding(g))
			return g.Bytes(), nil
		})
		if err != nil {
			s.fail(r.Reply, err)
			return
		}
		s.handle(r)
	})
	return nil
}

// spawn runs f in a goroutine that Close waits for. f's error becomes the last reply, unless the client is gone.
func (s *Service) spawn(r *Call, f func(ctx context.Context) error) {
	if r.Reply.Detach != nil {
		r.Reply.Detach()
	}
	s.wg.Go(func() {
		defer r.Reply.Abandon()
		ctx, cancel := jobs.Until(s.ctx, r.Gone, errGone)
		defer cancel(nil)
		_, err := message.Guarded(func() (struct{}, error) { return struct{}{}, f(ctx) })
		if err != nil && !errors.Is(context.Cause(ctx), errGone) {
			s.fail(r.Reply, err)
		}
	})
}

// errGone is the cause of a stream whose client went away.
var errGone = errors.New("the client went away")

// fail answers a request with an error, and counts it.
func (s *Service) fail(r *Reply, err error) {
	s.cfg.Meter.Refuse(fault.From(err))
	s.sent(r.Fail(err))
}

// sent logs the error of a reply that could not be sent: the client is gone, so there is nobody to tell.
func (s *Service) sent(err error) {
	if err != nil {
		s.cfg.Log.Debug().Err(err).Msg("reply not sent")
	}
}
