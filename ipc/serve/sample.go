package serve

import (
	"context"
	"errors"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// errAsked is the cause of a run that a client cancelled.
var errAsked = errors.New("the run was cancelled")

func (s *Service) sample(r *Call) error {
	q, failure := message.ParseSample(r.Fields, s.cfg.Forward)
	if failure != nil {
		return failure
	}
	q.Hold = r.hold
	if err := s.cfg.Limits.Nodes.Client(q.Latent.Shape, q.Sigmas.Shape[0]); err != nil {
		return err
	}
	ex := s.place(q.Model.File)
	stopped, err := s.cfg.Jobs.Begin(q.ID, jobs.KindSample, ex.Name())
	switch {
	case errors.Is(err, jobs.ErrHash):
		return fault.New(fault.Duplicate, "a job %s exists; choose another id", q.ID)
	case err != nil:
		return shuttingDown()
	}
	s.spawn(r, func(conn context.Context) error {
		ctx, cancel := jobs.Until(conn, stopped, errAsked)
		defer cancel(nil)
		return s.runSample(ctx, cancel, r.Reply, q, ex)
	})
	return nil
}

// runSample runs a request on ex and sends everything from "accepted" to the last message.
func (s *Service) runSample(ctx context.Context, cancel context.CancelCauseFunc, reply *Reply, q *message.SampleRequest,
	ex jobs.Executor,
) error {
	out := sampleStream{reply: reply, id: q.ID, lost: func() { cancel(errGone) }}
	out.send(&message.SampleReply{Type: message.ReplyAccepted, Worker: ex.Name()})
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		out.beat(ctx, s.cfg.Heartbeat)
	}()
	last, err := message.Guarded(func() (*message.SampleReply, error) {
		if err := ex.Ready(ctx); err != nil {
			return nil, err
		}
		return ex.Sample(ctx, q, func(m *message.SampleReply) {
			out.send(m)
			data := map[string]any{"prompt_id": q.ID, "value": m.Step, "max": m.Steps}
			if len(m.Sent) > 0 {
				data["sent"] = m.Sent
			}
			s.cfg.Jobs.Append(q.ID, 1, message.Event{Type: message.EventProgress, Data: data})
		})
	})
	cause := context.Cause(ctx)
	cancel(nil)
	<-quiet
	if err != nil && last != nil {
		last.Hold.Release()
	}
	switch {
	case errors.Is(cause, errGone):
		if err == nil {
			last.Hold.Release()
		}
		s.cfg.Log.Info().Str("job", q.ID).Msg("run cancelled: the client it was tied to went away")
		s.cfg.Jobs.Finish(context.Background(), q.ID,
			fault.New(fault.Cancelled, "the client that the run was tied to went away"), nil)
		return nil
	case err == nil:
		s.cfg.Meter.Sampled(q.ID, last.Metrics)
	case errors.Is(cause, errAsked):
		last = &message.SampleReply{Type: message.SampleCancelled, Error: fault.New(fault.Cancelled, "%v", errAsked)}
	case cause != nil:
		last = &message.SampleReply{Type: message.SampleError, Error: shuttingDown()}
	default:
		last = &message.SampleReply{Type: message.SampleError, Error: fault.From(err)}
	}
	last.Worker = ex.Name()
	// before the last message: a client that has it may use the id again
	s.cfg.Jobs.Finish(context.Background(), q.ID, last.Error, last.Metrics)
	out.send(last)
	last.Hold.Release()
	return reply.End()
}

// sampleStream sends the messages of one run from several goroutines.
type sampleStream struct {
	reply *Reply
	id    string
	lost  func() // called when a message cannot be sent

	mu   sync.Mutex
	seq  uint64
	last time.Time
}

// send numbers and sends a message.
func (o *sampleStream) send(m *message.SampleReply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seq++
	o.last = time.Now()
	m.V, m.ID, m.Seq, m.TS = message.ProtocolVersion, o.id, o.seq, o.last.UnixMilli()
	if err := o.reply.Message(m); err != nil {
		o.lost()
	}
}

// beat sends a heartbeat after every silence. Where it can ask, it stops the run if the client no longer listens: only
// that client wants the result.
func (o *sampleStream) beat(ctx context.Context, every time.Duration) {
	for range wire.Every(ctx, every) {
		o.mu.Lock()
		silent := time.Since(o.last) >= every
		o.mu.Unlock()
		if !silent {
			continue
		}
		if o.reply.Alive != nil && !o.reply.Alive() {
			o.lost()
			return
		}
		o.send(&message.SampleReply{Type: message.ReplyHeartbeat})
	}
}

// place returns the executor that ran a model last, or the next one in turn.
func (s *Service) place(file string) jobs.Executor {
	s.mu.Lock()
	defer s.mu.Unlock()
	ex := s.places[file]
	if ex == nil {
		ex = s.inTurn()
		if len(s.places) < 256 { // names come from clients
			s.places[file] = ex
		}
	}
	return ex
}

func (s *Service) load(r *Call) error {
	q := &message.LoadRequest{}
	if err := message.BindStrict(r.Fields, q); err != nil {
		return wire.BadRequest(err)
	}
	if q.Model.File == "" {
		return wire.BadRequest(wire.BadField("model.file", "is missing"))
	}
	s.spawn(r, func(ctx context.Context) error {
		total := message.LoadReply{V: message.ProtocolVersion}
		ask := s.cfg.Executors
		if q.Forecast != nil { // it is the same for all
			ask = ask[:1]
		}
		for _, ex := range ask {
			if err := ex.Ready(ctx); err != nil {
				return fault.New(fault.NoCapacity, "no worker became ready: %v", err)
			}
			out, err := ex.Load(ctx, q)
			if err != nil {
				return err
			}
			total.Latent, total.Forecast = out.Latent, out.Forecast
			total.Bytes, total.Seconds, total.Workers = total.Bytes+out.Bytes, max(total.Seconds, out.Seconds), total.Workers+1
		}
		return r.Reply.Last(total)
	})
	return nil
}
