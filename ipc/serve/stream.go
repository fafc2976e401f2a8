package serve

import (
	"context"
	"errors"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// stream says what a client is sent about a job: its events, and with Outputs its files before the terminal event.
type stream struct {
	message.JobRequest
	tied bool // cancel the job when the client goes away
}

// stream sends the events of a job until the terminal one. Something is sent at least every Heartbeat.
func (s *Service) stream(ctx context.Context, r *Call, st stream) error {
	cur, err := s.cfg.Jobs.Follow(ctx, st.Job, st.From, st.Preview)
	if err != nil {
		return fault.New(fault.NoJob, "no job %q here", st.Job)
	}
	defer cur.Close()
	if st.tied && r.Reply.Alive != nil {
		var stop context.CancelCauseFunc
		ctx, stop = context.WithCancelCause(ctx)
		defer stop(nil)
		go s.listens(ctx, r.Reply.Alive, stop)
	}
	for {
		wait, stop := context.WithTimeout(ctx, s.cfg.Heartbeat)
		it, err := cur.Next(wait)
		stop()
		switch {
		case errors.Is(err, jobs.ErrEnd):
			return r.Reply.End()
		case ctx.Err() != nil:
			s.untie(st, context.Cause(ctx))
			if errors.Is(context.Cause(ctx), errGone) {
				return nil
			}
			return fault.New(fault.Draining, "the daemon is shutting down; ask for the status of job %s", st.Job)
		case err != nil: // silence for Heartbeat
			err = r.Reply.Message(heartbeat(st.Job))
		case it.Preview != nil:
			err = r.Reply.Message(it.Preview)
		default:
			err = s.sendEvent(ctx, r.Reply, st, it.Event)
		}
		if _, isFault := errors.AsType[*fault.Error](err); isFault {
			return err
		}
		if err != nil {
			s.Sent(err)
			s.untie(st, errGone)
			return nil
		}
	}
}

// listens cancels the stream when the client no longer listens. It asks at fixed times, because a job with many events
// leaves no silence in which to ask.
func (s *Service) listens(ctx context.Context, alive func() bool, cancel context.CancelCauseFunc) {
	for range wire.Every(ctx, s.cfg.Heartbeat) {
		if !alive() {
			cancel(errGone)
			return
		}
	}
}

// untie cancels a job that was tied to a client that is gone.
func (s *Service) untie(st stream, cause error) {
	if !st.tied || !errors.Is(cause, errGone) {
		return
	}
	log := s.cfg.Log.With().Str("job", st.Job).Logger()
	insist(s.ctx, func() error { // the stream has ended, and a service that stops still tries once
		if rec, err := s.cfg.Jobs.Get(st.Job); err == nil && !rec.Tied { // it was retried since
			return nil
		}
		_, did, err := s.cfg.Jobs.Cancel(context.Background(), st.Job)
		switch {
		case errors.Is(err, jobs.ErrNoJob):
			return nil
		case err != nil:
			log.Warn().Err(err).Msg("the job of a client that went away is not cancelled; trying again")
		case did:
			log.Info().Msg("job cancelled: the client it was tied to went away")
		}
		return err
	})
}

// insist repeats f until it succeeds or ctx ends: the store may be away.
func insist(ctx context.Context, f func() error) {
	for f() != nil && wire.Pause(ctx, time.Second) == nil {
	}
}

// sendEvent sends an event, and before the terminal one the files; an end before which the job was retried has none any
// more. A *fault.Error is for the client; other errors mean that sending failed.
func (s *Service) sendEvent(ctx context.Context, reply *Reply, st stream, ev *message.Event) error {
	if message.Terminal(ev.Type) && st.Outputs {
		rec, err := s.cfg.Jobs.Get(st.Job)
		if err != nil {
			return fault.New(fault.NoJob, "job %q was forgotten before its files were sent", st.Job)
		}
		if ev.Attempt != rec.Attempt || ev.Type != message.EventSuccess && rec.Dropped > 0 {
			rec.Outputs = nil
		}
		if err := s.sendFiles(ctx, reply, rec); err != nil {
			return err
		}
	}
	return reply.Message(ev)
}

// files returns a function that reads file i of a job: from Outputs, or from what the daemon that ran the job has sent.
func (s *Service) files(ctx context.Context, reply *Reply, job string) func(i int) ([]byte, error) {
	if s.cfg.Fetch == nil || s.cfg.Jobs.Holder(job) == "" {
		return func(i int) ([]byte, error) { return s.cfg.Outputs.Read(job, i) }
	}
	got, err := s.fetchFiles(ctx, reply, job)
	return func(i int) ([]byte, error) {
		if err == nil && i >= len(got) {
			err = fault.New(fault.Expired, "the daemon that ran job %s has %d files of it", job, len(got))
		}
		if err != nil {
			return nil, err
		}
		return got[i].Data, nil
	}
}

// fetchFiles fetches the files of a job from another daemon. Meanwhile the client gets heartbeats, or it would take the
// silence for the loss of this daemon. Once it is gone, the transfer ends.
func (s *Service) fetchFiles(ctx context.Context, reply *Reply, job string) (files []message.File, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	fetched := make(chan struct{})
	go func() {
		defer close(fetched)
		files, err = message.Guarded(func() ([]message.File, error) { return s.cfg.Fetch(ctx, job) })
	}()
	for {
		select {
		case <-fetched:
			return files, err
		case <-time.After(s.cfg.Heartbeat):
			if reply.Message(heartbeat(job)) != nil {
				stop()
			}
		}
	}
}

func heartbeat(job string) message.Heartbeat {
	return message.Heartbeat{Type: message.ReplyHeartbeat, Job: job, TS: time.Now().UnixMilli()}
}

// filesDropped returns an error for a job whose files were removed.
func filesDropped(rec *message.Record) error {
	if rec.Dropped == 0 || len(rec.Outputs) == 0 {
		return nil
	}
	return fault.New(fault.Expired, "the files of job %s were dropped at %s: somebody has deleted them, or results are "+
		"kept for a time and up to a size (serve --keep-results, --keep-bytes)", rec.Job,
		time.UnixMilli(rec.Dropped).UTC().Format(time.RFC3339))
}

func (s *Service) sendFiles(ctx context.Context, reply *Reply, rec message.Record) error {
	if err := filesDropped(&rec); err != nil {
		return err
	}
	read := s.files(ctx, reply, rec.Job)
	for i, ref := range rec.Outputs {
		data, err := read(i)
		if err := reply.File(rec.Job, i, ref, data, err); err != nil {
			return err
		}
	}
	return nil
}

// File sends file i of a job; failed says why there is no data. A file that does not fit in the message is offered
// beside it even to a client that has accepted no references, or that client could not have it.
func (r *Reply) File(job string, i int, ref message.OutputRef, data []byte, failed error) error {
	accepts := r.Beside != nil && r.Enc == wire.Msgpack
	if !accepts && r.Offer != nil && len(data) > r.inlineLimit() {
		return r.Message(offeredFile{
			Type: message.ReplyOutput, Job: job, Output: i, Ref: ref,
			Data: map[string]*wire.Ref{wire.RefKey: r.Offer(data)},
		})
	}
	return r.Message(message.Output{
		Type: message.ReplyOutput, Job: job, Output: i, Ref: ref, Data: data, Error: fault.From(failed),
	})
}

// offeredFile is a message.Output whose data is a reference, in both encodings.
type offeredFile struct {
	Type   string               `json:"type"`
	Job    string               `json:"job"`
	Output int                  `json:"output"`
	Ref    message.OutputRef    `json:"ref"`
	Data   map[string]*wire.Ref `json:"data"`
}
