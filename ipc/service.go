package ipc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// ServiceConfig is what a Service answers from.
type ServiceConfig struct {
	Jobs      *Jobs
	Shelf     *Shelf
	Executors []Executor
	// Validate refuses a workflow that cannot run; it must not touch a device. Where some outputs can run and others cannot, it returns ComfyUI's
	// node_errors of the others and no error.
	Validate func(req *RunRequest, w *graph.Workflow) (map[string]any, error)
	// Needs lists the files that a validated workflow reads; nil: nobody asks.
	Needs func(req *RunRequest, w *graph.Workflow) []files.NeededFile
	// Describe returns object_info entries of one class, or of all for "". An unknown class gives an empty map.
	Describe func(class string) map[string]any
	// Models returns the model files by kind of folder.
	Models func() map[string]any
	// Fetch returns the files of a job that another daemon has run; nil: there is no other.
	Fetch func(ctx context.Context, job string) ([]File, error)
	Log   zerolog.Logger
	Meter *Meter // nil: a new one
	// Tensors keeps tensors that hosts name by their hash; nil: the executors are workers that do.
	Tensors *TensorCache
	// Forward says that the executors are workers, which read large tensors themselves.
	Forward bool
	// Bounds are what clients may ask for.
	Bounds Bounds
	// Heartbeat is the longest silence of a stream. 0: 2 s.
	Heartbeat time.Duration
}

// Service answers the verbs on every carrier. Handle returns soon: it decodes, validates and enqueues; whatever takes longer goes on in a goroutine
// of its own. Safe for concurrent use.
type Service struct {
	cfg    ServiceConfig
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	next   atomic.Uint64 // executor for the next exec
	mu     sync.Mutex
	owners map[string]*ownership // of handles
	places map[string]Executor   // of model files: where a sample ran last
}

// NewService returns a service. Close ends its streams.
func NewService(cfg ServiceConfig) *Service {
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 2 * time.Second
	}
	cfg.Bounds = cfg.Bounds.orPreset()
	if cfg.Meter == nil {
		cfg.Meter = NewMeter()
	}
	s := &Service{cfg: cfg, owners: map[string]*ownership{}, places: map[string]Executor{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close cuts off the streams that are still under way and waits for their goroutines.
func (s *Service) Close() {
	s.stop()
	s.wg.Wait()
}

// Owns tells whether this daemon has a job.
func (s *Service) Owns(job string) bool {
	mine, _ := s.cfg.Jobs.Mine(job)
	return mine
}

// Elsewhere tells whether another daemon on the same server, which is alive, has a job.
func (s *Service) Elsewhere(job string) bool {
	_, there := s.cfg.Jobs.Mine(job)
	return there
}

// Streams tells whether a verb with these fields answers with several messages.
func Streams(verb string, o *pyjson.Object) bool {
	if verb == VerbRun || verb == VerbSample {
		return true
	}
	if verb != VerbStatus || o == nil {
		return false
	}
	var r jobRequest
	return Bind(o, &r) == nil && (r.Follow || r.Outputs)
}

// NeedsBody tells whether an empty body is a mistake for a verb.
func NeedsBody(verb string) bool {
	switch verb {
	case VerbRun, VerbSubmit, VerbSample, VerbExec:
		return true
	}
	return false
}

// Handle answers one request, or starts to.
func (s *Service) Handle(r *Request) {
	s.cfg.Meter.asked(r.Verb)
	r.Reply.Stream = Streams(r.Verb, r.Fields)
	_, err := guarded(func() (struct{}, error) { return struct{}{}, s.verb(r) })
	if err != nil {
		s.cfg.Log.Debug().Err(err).Str("verb", r.Verb).Msg("request refused")
		s.fail(r.Reply, err)
	}
}

func (s *Service) verb(r *Request) error {
	refs, err := refsOf(r.Verb, r.Fields)
	switch {
	case err != nil:
		return badRequest(err)
	case len(refs) > 0:
		return s.fetch(r, refs)
	case s.cfg.Tensors != nil && (r.Verb == VerbSample || r.Verb == VerbExec) && r.Fields != nil:
		if err := s.cfg.Tensors.fill(r.Fields); err != nil {
			return err
		}
	}
	if r.Fields == nil {
		if NeedsBody(r.Verb) {
			return Errorf(ErrEmptyBody, "%s", emptyBodyHint)
		}
		r.Fields = pyjson.NewObject()
	}
	switch r.Verb {
	case VerbRun:
		return s.run(r)
	case VerbSubmit:
		return s.submit(r)
	case VerbStatus:
		return s.status(r)
	case VerbJobs:
		return s.jobs(r)
	case VerbCancel:
		return s.cancel(r)
	case VerbRetry:
		return s.retry(r)
	case VerbDescribe:
		return s.describe(r)
	case VerbModels:
		s.sent(r.Reply.Last(modelsReply{V: ProtocolVersion, Models: s.cfg.Models()}))
		return nil
	case VerbExec:
		return s.exec(r)
	case VerbSample:
		return s.sample(r)
	case VerbLoad:
		return s.load(r)
	case VerbFree:
		return s.free(r)
	case VerbStats:
		s.sent(r.Reply.Last(s.cfg.Meter.Stats()))
		return nil
	}
	return Errorf(ErrNoVerb, "no verb %q; the verbs are %s", shown(r.Verb), strings.Join(verbs(), ", "))
}

// fetch gets what a request refers to, and handles it then.
func (s *Service) fetch(r *Request, refs []*Ref) error {
	total := 0
	for _, ref := range refs {
		if r.pull == nil || ref.Kind == RefShm {
			return Errorf(ErrBadRequest, "a reference of kind %s: only %s", ref.Kind, "shm with the frame's descriptors works on a unix socket, stream and object on NATS")
		}
		if total += ref.Bytes; total > maxRegion {
			return Errorf(ErrTooLarge, "the request refers to more than %d bytes", maxRegion)
		}
	}
	if r.Reply.Detach != nil {
		r.Reply.Detach()
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, bulkTime)
		defer cancel()
		err := replaceRefs(r.Verb, r.Fields, func(ref *Ref) ([]byte, error) {
			g, err := r.pull(ctx, ref)
			if err != nil {
				return nil, err
			}
			r.hold = r.hold.join(holding(g))
			return g.Bytes(), nil
		})
		if err != nil {
			s.sent(r.Reply.Fail(err))
			return
		}
		s.Handle(r)
	})
	return nil
}

// spawn runs f in a goroutine that Close waits for. f's error becomes the last reply.
func (s *Service) spawn(r *Request, f func(ctx context.Context) error) {
	if r.Reply.Detach != nil {
		r.Reply.Detach()
	}
	s.wg.Go(func() {
		defer r.Reply.Abandon()
		ctx, cancel := context.WithCancelCause(s.ctx)
		defer cancel(nil)
		if r.Gone != nil {
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				select {
				case <-r.Gone:
					cancel(errGone)
				case <-stop:
				}
			}()
		}
		_, err := guarded(func() (struct{}, error) { return struct{}{}, f(ctx) })
		if err != nil && !errors.Is(context.Cause(ctx), errGone) {
			s.fail(r.Reply, err)
		}
	})
}

// errGone is the cause of a stream whose client went away.
var errGone = errors.New("the client went away")

// fail answers a request with an error, and counts it.
func (s *Service) fail(r *Reply, err error) {
	s.cfg.Meter.refuse(errorOf(err))
	s.sent(r.Fail(err))
}

// sent logs a reply that could not be sent: the client is gone, nobody is there to be told.
func (s *Service) sent(err error) {
	if err != nil {
		s.cfg.Log.Debug().Err(err).Msg("reply not sent")
	}
}
