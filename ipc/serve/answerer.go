package serve

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/meter"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// AnswererConfig says how requests are answered.
type AnswererConfig struct {
	// Unknown is the error for verbs that are not in Answerer.Verbs.
	Unknown func(verb string) error
	// Limits are what clients may ask for.
	Limits Limits
	// Heartbeat is the longest silence of a stream. 0: 2 s.
	Heartbeat time.Duration
	Log       zerolog.Logger
	Meter     *meter.Meter // nil: nothing is counted
}

// Answerer decodes requests and has each answered by its verb, in a daemon (Service) and in a worker. Handle returns
// soon: whatever takes longer runs in a goroutine of its own. It is safe for concurrent use.
type Answerer struct {
	// Verbs answer requests, by name; an error that they return is the answer. They are set before the first request.
	Verbs map[string]func(*Call) error

	cfg  AnswererConfig
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// NewAnswerer returns an Answerer. Close ends its streams.
func NewAnswerer(cfg AnswererConfig) *Answerer {
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 2*time.Second)
	cfg.Limits = cfg.Limits.orPreset()
	a := &Answerer{cfg: cfg}
	a.ctx, a.stop = context.WithCancel(context.Background())
	return a
}

// Heartbeat returns the longest silence of a stream.
func (a *Answerer) Heartbeat() time.Duration { return a.cfg.Heartbeat }

// Close cuts off the streams that are still under way and waits for their goroutines.
func (a *Answerer) Close() {
	a.stop()
	a.wg.Wait()
}

// Handle answers one request, or starts a goroutine that will.
func (a *Answerer) Handle(r *Call) {
	if a.cfg.Meter != nil {
		a.cfg.Meter.Asked(r.Verb)
	}
	r.Reply.Stream = message.VerbOf(r.Verb).Stream(r.Fields)
	a.handle(r)
}

// handle is Handle for a request that is counted: fetch comes back to it.
func (a *Answerer) handle(r *Call) {
	_, err := message.Guarded(func() (struct{}, error) { return struct{}{}, a.verb(r) })
	if err != nil {
		a.cfg.Log.Debug().Err(err).Str("verb", r.Verb).Msg("request refused")
		a.Fail(r.Reply, err)
	}
}

func (a *Answerer) verb(r *Call) error {
	answer := a.Verbs[r.Verb]
	if answer == nil {
		return a.cfg.Unknown(r.Verb)
	}
	v := message.VerbOf(r.Verb)
	refs, err := message.RefsOf(r.Verb, r.Fields)
	switch {
	case err != nil:
		return wire.BadRequest(err)
	case len(refs) > 0:
		return a.fetch(r, refs)
	}
	if r.Fields == nil {
		if v.NeedsBody {
			return fault.New(fault.EmptyBody, "%s", message.EmptyBodyHint)
		}
		r.Fields = pyjson.NewObject()
	}
	if err := v.Check(r.Fields); err != nil {
		return wire.BadRequest(err)
	}
	return answer(r)
}

// Once returns a handler that sends what f returns as the only reply.
func (a *Answerer) Once(f func(*Call) (any, error)) func(*Call) error {
	return func(r *Call) error {
		out, err := f(r)
		if err == nil {
			a.Sent(r.Reply.Last(out))
		}
		return err
	}
}

// fetch fetches, in a goroutine, the bytes that a request refers to, and then handles it.
func (a *Answerer) fetch(r *Call, refs []*wire.Ref) error {
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
	a.wg.Go(func() {
		ctx, cancel := context.WithTimeout(a.ctx, bulk.Patience)
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
			a.Fail(r.Reply, err)
			return
		}
		a.handle(r)
	})
	return nil
}

// Spawn runs f in a goroutine that Close waits for. f's error becomes the last reply, unless the client is gone.
func (a *Answerer) Spawn(r *Call, f func(ctx context.Context) error) {
	if r.Reply.Detach != nil {
		r.Reply.Detach()
	}
	a.wg.Go(func() {
		defer r.Reply.Abandon()
		ctx, cancel := jobs.Until(a.ctx, r.Gone, errGone)
		defer cancel(nil)
		_, err := message.Guarded(func() (struct{}, error) { return struct{}{}, f(ctx) })
		if err != nil && !errors.Is(context.Cause(ctx), errGone) {
			a.Fail(r.Reply, err)
		}
	})
}

// errGone is the cause of a stream whose client went away.
var errGone = errors.New("the client went away")

// Fail answers a request with an error, and counts it.
func (a *Answerer) Fail(r *Reply, err error) {
	if a.cfg.Meter != nil {
		a.cfg.Meter.Refuse(fault.From(err))
	}
	a.Sent(r.Fail(err))
}

// Sent logs the error of a reply that could not be sent: its client is gone.
func (a *Answerer) Sent(err error) {
	if err != nil {
		a.cfg.Log.Debug().Err(err).Msg("reply not sent")
	}
}
