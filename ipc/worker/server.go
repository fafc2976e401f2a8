package worker

import (
	"context"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/meter"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
)

// server answers requests in a worker process: each runs on the executor at once, or as soon as one of its places is
// free, and its events go from there into frames. Nothing is remembered of a job that has ended.
type server struct {
	*serve.Answerer
	cfg    Config
	places chan struct{} // holds one value per running job

	mu    sync.Mutex
	stops map[string]func() // by the id of a job or sample that has begun: stops it
}

// verbs are what a worker answers, as a daemon says it to clients that want more.
const verbs = "run, exec, sample, load, free, describe, cancel and ping"

func newServer(cfg Config) *server {
	s := &server{cfg: cfg, places: make(chan struct{}, max(1, cfg.Jobs)), stops: map[string]func(){}}
	s.Answerer = serve.NewAnswerer(serve.AnswererConfig{
		Limits: cfg.Limits, Heartbeat: cfg.Heartbeat, Log: cfg.Log,
		Unknown: func(verb string) error {
			if message.VerbOf(verb).Name == "" {
				return fault.New(fault.NoVerb, "no verb %q; a worker answers %s", wire.Shown(verb), verbs)
			}
			return fault.New(fault.NoVerb, "%s is answered by a daemon (patchbay serve), which keeps jobs; a worker "+
				"answers %s", verb, verbs)
		},
	})
	run := s.run
	if cfg.Private {
		run = s.attempt
	}
	s.Verbs = map[string]func(*serve.Call) error{
		message.VerbRun: run, message.VerbExec: s.exec, message.VerbSample: s.sample, message.VerbLoad: s.load,
		message.VerbFree: s.free, message.VerbDescribe: s.Once(s.describe), message.VerbCancel: s.Once(s.cancel),
	}
	return s
}

// begin notes that a job or sample has begun. It is asked to stop by closing stop; end forgets it, and must be called
// before the last message: who has that may use the id again.
func (s *server) begin(id string) (stop <-chan struct{}, end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stops[id] != nil {
		return nil, nil, fault.New(fault.Duplicate, "a job %s runs here; choose another id", id)
	}
	asked := make(chan struct{})
	s.stops[id] = sync.OnceFunc(func() { close(asked) })
	return asked, sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.stops, id)
	}), nil
}

func (s *server) cancel(r *serve.Call) (any, error) {
	var q message.JobRequest
	if err := wire.Bind(r.Fields, &q); err != nil {
		return nil, wire.BadRequest(err)
	}
	s.mu.Lock()
	stop := s.stops[q.Job]
	s.mu.Unlock()
	if stop == nil {
		return nil, fault.New(fault.NoJob, "no job %q runs here", wire.Shown(q.Job))
	}
	stop()
	return message.CancelReply{V: message.ProtocolVersion, Job: q.Job, Cancelled: true, State: message.Running}, nil
}

// execute runs an attempt in its turn.
func (s *server) execute(ctx context.Context, task jobs.Task, stop <-chan struct{}, sink jobs.Sink,
) (*jobs.Outcome, error) {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	case <-stop:
		return nil, jobs.Cancelled()
	case <-ctx.Done():
		return nil, fault.New(fault.Draining, "the worker was stopped before the job began")
	}
	log := s.cfg.Log.With().Str("job", task.Req.ID).Int("attempt", task.Attempt).Logger()
	emit := sink.Event
	sink.Event = func(ev message.Event) {
		meter.TraceEvent(&log, ev)
		emit(ev)
	}
	out, err := jobs.Execute(ctx, s.cfg.Executor, task, stop, sink)
	if err == nil {
		meter.TraceRanks(&log, out.Metrics)
	}
	return out, err
}

// typeEnded is the type of the last message about an attempt, which only a daemon gets: an event with metrics and ui of
// the outcome, and the error.
const typeEnded = "ended"

// attempt is the verb run of a daemon that has validated the workflow and keeps the job: events and files, without
// names, as they come, and typeEnded.
func (s *server) attempt(r *serve.Call) error {
	req := &message.RunRequest{}
	if err := wire.Bind(r.Fields, req); err != nil {
		return wire.BadRequest(err)
	}
	stop, end, err := s.begin(req.ID)
	if err != nil {
		return err
	}
	s.Spawn(r, func(ctx context.Context) error {
		defer end()
		sent := 0
		out, err := s.execute(ctx, jobs.Task{Req: req, Attempt: req.Attempt}, stop, jobs.Sink{
			Event:   func(ev message.Event) { s.Sent(r.Reply.Message(ev)) },
			Preview: func(node string, jpeg []byte) { s.Sent(r.Reply.Message(preview(req.ID, node, jpeg))) },
			File: func(f message.File) {
				s.Sent(r.Reply.File(req.ID, sent, f.Ref, f.Data, nil))
				sent++
			},
		})
		end()
		last := message.Event{Type: typeEnded, Error: fault.From(err), Data: map[string]any{}}
		if last.Error != nil {
			last.NodeErrors = last.Error.NodeErrors
		}
		if out != nil {
			if err := sendFiles(r.Reply, req.ID, sent, out.Files[min(sent, len(out.Files)):]); err != nil {
				return err
			}
			last.Data["metrics"], last.Data["ui"] = out.Metrics, out.UI
		}
		return r.Reply.Last(last)
	})
	return nil
}

func preview(job, node string, jpeg []byte) message.Preview {
	return message.Preview{Type: message.ReplyPreview, Job: job, Node: node, Format: "image/jpeg", Data: jpeg}
}

// sendFiles sends files of a job of which the first is number from.
func sendFiles(reply *serve.Reply, job string, from int, files []message.File) error {
	for i, f := range files {
		if err := reply.File(job, from+i, f.Ref, f.Data, nil); err != nil {
			return err
		}
	}
	return nil
}

// run is the verb run of other programs: it validates the workflow and answers as a daemon does.
func (s *server) run(r *serve.Call) error {
	req, w, err := s.RunRequest(r)
	if err != nil {
		return err
	}
	outputs, nodeErrors, err := s.cfg.Classes.Validate(req, w)
	if err != nil {
		return err
	}
	if failure := s.cfg.Limits.Nodes.Workflow(w); failure != nil {
		return failure
	}
	req.Validated, req.Attempt = outputs, 1
	stop, end, err := s.begin(req.ID)
	if err != nil {
		return err
	}
	out := &runStream{reply: r.Reply, job: req.ID}
	s.Sent(out.send(message.Receipt{
		V: message.ProtocolVersion, Type: message.ReplyAccepted, Job: req.ID, State: message.Queued,
		Events: message.EventSubject(req.ID, ">"), Status: message.VerbSubject(message.VerbStatus, req.ID),
		NodeErrors: nodeErrors,
	}))
	queued := map[string]any{"prompt_id": req.ID, "position": 0}
	if titles := message.Titles(w); len(titles) > 0 {
		queued["titles"] = titles
	}
	s.Sent(out.event(message.Event{Type: message.EventQueued, Data: queued}))
	s.Spawn(r, func(ctx context.Context) error {
		defer end()
		beats, quiet := context.WithCancel(ctx)
		var beating sync.WaitGroup
		beating.Go(func() { out.beat(beats, s.Heartbeat()) })
		saves := map[string]bool{} // nodes whose executed event comes at the end, beside their files
		made, err := s.execute(ctx, jobs.Task{Req: req, Attempt: 1, Graph: w}, stop, jobs.Sink{
			File: func(f message.File) { saves[f.Ref.Node] = true },
			Event: func(ev message.Event) {
				if ev.Type == message.EventExecuted && saves[ev.Node] {
					return
				}
				if ev.Data == nil {
					ev.Data = map[string]any{}
				}
				ev.Data["prompt_id"] = req.ID
				s.Sent(out.event(ev))
			},
			Preview: func(node string, jpeg []byte) { s.Sent(out.send(preview(req.ID, node, jpeg))) },
		})
		quiet()
		beating.Wait()
		end()
		return out.end(made, fault.From(err))
	})
	return nil
}

// runStream sends what a run has to say from several goroutines.
type runStream struct {
	reply *serve.Reply
	job   string

	mu   sync.Mutex
	seq  uint64
	last time.Time
}

func (o *runStream) send(v any) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Now()
	return o.reply.Message(v)
}

// event numbers and sends an event.
func (o *runStream) event(ev message.Event) error {
	o.seq++ // events come one at a time
	ev.V, ev.Job, ev.Seq, ev.TS, ev.Attempt = message.ProtocolVersion, o.job, o.seq, time.Now().UnixMilli(), 1
	return o.send(ev)
}

// beat sends a heartbeat after every silence.
func (o *runStream) beat(ctx context.Context, every time.Duration) {
	for range wire.Every(ctx, every) {
		o.mu.Lock()
		silent := time.Since(o.last) >= every
		o.mu.Unlock()
		if silent {
			_ = o.send(message.Heartbeat{Type: message.ReplyHeartbeat, Job: o.job, TS: time.Now().UnixMilli()})
		}
	}
}

// end sends the last events, and before the terminal one the files, which have no names.
func (o *runStream) end(made *jobs.Outcome, failure *fault.Error) error {
	if made == nil {
		made = &jobs.Outcome{}
	}
	now := time.Now().UnixMilli()
	rec := message.Record{
		Job: o.job, State: jobs.EndOf(failure), Error: failure, Started: now, Finished: now, Metrics: made.Metrics,
		Outputs: []message.OutputRef{},
	}
	if failure != nil {
		rec.NodeError = failure.NodeErrors
	}
	for _, f := range made.Files {
		rec.Outputs = append(rec.Outputs, f.Ref)
	}
	for _, ev := range jobs.LastEvents(rec, made.UI) {
		if message.Terminal(ev.Type) {
			if err := sendFiles(o.reply, o.job, 0, made.Files); err != nil {
				return err
			}
		}
		if err := o.event(ev); err != nil {
			return err
		}
	}
	return o.reply.End()
}

func (s *server) sample(r *serve.Call) error {
	q, err := s.SampleRequest(r, false)
	if err != nil {
		return err
	}
	stop, end, err := s.begin(q.ID)
	if err != nil {
		return err
	}
	s.Sample(r, q, s.cfg.Executor, stop, func(*message.SampleReply) {}, func(*message.SampleReply) { end() })
	return nil
}

func (s *server) exec(r *serve.Call) error {
	q, err := r.ExecRequest()
	if err != nil {
		return err
	}
	s.Spawn(r, func(ctx context.Context) error {
		out, err := s.cfg.Executor.Exec(ctx, q)
		if err != nil {
			return err
		}
		defer out.Hold.Release()
		out.V, out.Worker = message.ProtocolVersion, s.cfg.Executor.Name()
		return r.Reply.Last(out)
	})
	return nil
}

func (s *server) load(r *serve.Call) error {
	q, err := r.LoadRequest()
	if err != nil {
		return err
	}
	s.Spawn(r, func(ctx context.Context) error {
		out, err := s.cfg.Executor.Load(ctx, q)
		if err != nil {
			return err
		}
		out.V, out.Workers = message.ProtocolVersion, 1
		return r.Reply.Last(out)
	})
	return nil
}

func (s *server) free(r *serve.Call) error {
	q := &message.FreeRequest{}
	if err := wire.Bind(r.Fields, q); err != nil {
		return wire.BadRequest(err)
	}
	s.Spawn(r, func(ctx context.Context) error {
		out, err := s.cfg.Executor.Free(ctx, q)
		if err != nil {
			return err
		}
		out.V = message.ProtocolVersion
		return r.Reply.Last(out)
	})
	return nil
}

func (s *server) describe(r *serve.Call) (any, error) {
	return s.cfg.Classes.Reply(r, s.cfg.Limits.Reply())
}
