package serve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/graph"
)

// RunRequest reads and parses the body of run and submit.
func (a *Answerer) RunRequest(r *Call) (*message.RunRequest, *graph.Workflow, error) {
	req, w, failure := message.ParseRunWithin(r.Fields, a.cfg.Limits.frame())
	if failure != nil {
		return nil, nil, failure
	}
	return req, w, nil
}

// accept validates a request for a job and puts it into the table.
func (s *Service) accept(r *Call) (*message.RunRequest, message.Receipt, error) {
	req, w, err := s.RunRequest(r)
	if err != nil {
		return nil, message.Receipt{}, err
	}
	if req.Webhook != "" {
		if s.cfg.Webhook == nil {
			return nil, message.Receipt{}, fault.Named(fault.BadRequest, "webhook",
				"webhooks are off here: serve --webhook-secret-file switches them on")
		}
		if failure := s.cfg.Webhook(req.Webhook); failure != nil {
			return nil, message.Receipt{}, failure
		}
	}
	req.TraceParent = cmp.Or(req.TraceParent, r.TraceParent)
	req.From = message.ClientName(r.From, req)
	req.Titles = message.Titles(w)
	if id := r.MsgID; id != "" && !message.HasField(r.Fields, "id") && !message.HasField(r.Fields, "prompt_id") {
		if !wire.ValidID(id) {
			return nil, message.Receipt{}, fault.New(fault.BadRequest,
				"header Nats-Msg-Id %q is no job id: want 1 to 64 of A-Z a-z 0-9 _ -", wire.Shown(id))
		}
		if req.UniqueKey != "" {
			return nil, message.Receipt{}, fault.New(fault.BadRequest,
				"field unique_key: makes the job's id: leave out the header Nats-Msg-Id")
		}
		req.ID = id
	}
	req.Tied = r.Verb == message.VerbRun && (r.Tied || req.Tied)
	nodeErrors, err := s.validate(req, w)
	if err != nil {
		return nil, message.Receipt{}, err
	}
	req.About, req.Model = message.About(w)
	req.Hold = r.hold.Retain() // the table releases it when the job has ended
	workflow := string(w.JSON())
	hash := message.Hash(req, workflow)
	req.Workflow = workflow // as it was validated
	var rec message.Record
	var created bool
	if req.Reuse {
		rec, created, err = s.cfg.Jobs.Reuse(s.ctx, s.cfg.Outputs, req, hash, w.IDs())
	}
	if rec.Job == "" && err == nil {
		rec, created, err = s.cfg.Jobs.Create(s.ctx, req, hash)
	}
	if !created {
		req.Hold.Release()
	}
	if err != nil {
		return nil, message.Receipt{}, s.refusedJob(req, err)
	}
	return req, message.Receipt{
		V: message.ProtocolVersion, Type: message.ReplyAccepted, Job: rec.Job, State: rec.State, Position: rec.Position,
		Duplicate: !created, Reused: rec.Reused,
		Events: message.EventSubject(rec.Job, ">"), Status: message.VerbSubject(message.VerbStatus, rec.Job),
		NodeErrors: nodeErrors,
	}, nil
}

// validate returns an error for a workflow that cannot run at all, or on no daemon, and notes the outputs that can run.
// nodeErrors are ComfyUI's for outputs that cannot run while others can.
func (s *Service) validate(req *message.RunRequest, w *graph.Workflow) (nodeErrors map[string]any, err error) {
	if req.Validated, nodeErrors, err = s.cfg.Validate(req, w); err != nil {
		return nil, s.cfg.Jobs.ExplainMissing(err)
	}
	if failure := s.cfg.Limits.Nodes.Workflow(w); failure != nil {
		return nil, failure
	}
	if s.cfg.Needs == nil {
		return nodeErrors, nil
	}
	req.Files = s.cfg.Needs(req, w)
	if failure := s.cfg.Jobs.Admit(req); failure != nil {
		return nil, failure
	}
	return nodeErrors, nil
}

func (s *Service) submit(r *Call) (any, error) {
	_, receipt, err := s.accept(r)
	return receipt, err
}

func (s *Service) run(r *Call) error {
	req, receipt, err := s.accept(r)
	if err != nil {
		return err
	}
	if err := r.Reply.Message(receipt); err != nil {
		s.Sent(err)
	}
	st := stream{
		message.JobRequest{Job: receipt.Job, Preview: req.Preview, Outputs: true}, !receipt.Duplicate && req.Tied,
	}
	s.Spawn(r, func(ctx context.Context) error { return s.stream(ctx, r, st) })
	return nil
}

func (s *Service) jobRequest(r *Call) (message.JobRequest, message.Record, error) {
	var q message.JobRequest
	if err := wire.Bind(r.Fields, &q); err != nil {
		return q, message.Record{}, wire.BadRequest(err)
	}
	if r.Job != "" {
		q.Job = r.Job
	}
	if q.Job == "" {
		return q, message.Record{}, fault.New(fault.BadRequest, "field job is missing")
	}
	rec, err := s.cfg.Jobs.Get(q.Job)
	if err != nil {
		return q, rec, fault.New(fault.NoJob, "no job %q here", wire.Shown(q.Job))
	}
	return q, rec, nil
}

func (s *Service) status(r *Call) error {
	q, rec, err := s.jobRequest(r)
	if err != nil {
		return err
	}
	reply := message.RecordReply{Type: "record", Record: rec}
	if !q.Follow && !q.Outputs {
		s.Sent(r.Reply.Last(reply))
		return nil
	}
	if err := r.Reply.Message(reply); err != nil {
		s.Sent(err)
	}
	s.Spawn(r, func(ctx context.Context) error {
		if q.Follow {
			return s.stream(ctx, r, stream{JobRequest: q})
		}
		if rec.State != message.Done && len(rec.Outputs) == 0 {
			return fault.New(fault.Expired, "job %s is %s and has no files", q.Job, rec.State)
		}
		if err := s.sendFiles(ctx, r.Reply, rec); err != nil {
			return err
		}
		return r.Reply.End()
	})
	return nil
}

func (s *Service) jobs(r *Call) (any, error) {
	var q message.JobsRequest
	if err := wire.Bind(r.Fields, &q); err != nil {
		return nil, wire.BadRequest(err)
	}
	if q.State != "" && !slices.Contains(message.States(), message.State(q.State)) {
		return nil, wire.BadRequest(wire.BadField("state", "%q: want one of %s, or leave it out", q.State,
			strings.ReplaceAll(strings.Trim(fmt.Sprint(message.States()), "[]"), " ", ", ")))
	}
	if q.Limit <= 0 {
		q.Limit = 100
	}
	list, counts := s.cfg.Jobs.List(message.State(q.State), q.Limit)
	for i := range list { // only what a table shows; status has the rest
		list[i].Metrics, list[i].NodeError, list[i].Files = nil, nil, nil
	}
	return message.JobsReply{V: message.ProtocolVersion, Jobs: list, Counts: counts}, nil
}

func (s *Service) cancel(r *Call) (any, error) {
	q, _, err := s.jobRequest(r)
	if err != nil {
		return nil, err
	}
	state, did, err := s.cfg.Jobs.Cancel(s.ctx, q.Job)
	return message.CancelReply{V: message.ProtocolVersion, Job: q.Job, Cancelled: did, State: state}, err
}

func (s *Service) retry(r *Call) (any, error) {
	q, _, err := s.jobRequest(r)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(s.ctx, jobs.AskTime)
	defer stop()
	rec, err := s.cfg.Jobs.Retry(ctx, q.Job)
	return message.RetryReply{V: message.ProtocolVersion, Job: q.Job, State: rec.State}, err
}

func (s *Service) move(r *Call) (any, error) {
	var q message.MoveRequest
	if err := wire.Bind(r.Fields, &q); err != nil {
		return nil, wire.BadRequest(err)
	}
	if q.Front == (q.Priority != "") || message.PriorityRank(q.Priority) < 0 {
		return nil, wire.BadRequest(wire.BadField("priority", "%q: want one of %s, or front: true in its place",
			wire.Shown(q.Priority), strings.Join(message.Priorities(), ", ")))
	}
	_, rec, err := s.jobRequest(r)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(s.ctx, jobs.AskTime)
	defer stop()
	rec, err = s.cfg.Jobs.Move(ctx, rec.Job, q.Front, q.Priority)
	return message.MoveReply{V: message.ProtocolVersion, Job: rec.Job, State: rec.State, Position: rec.Position}, err
}

// remove answers delete.
func (s *Service) remove(r *Call) (any, error) {
	q, _, err := s.jobRequest(r)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(s.ctx, jobs.AskTime)
	defer stop()
	return s.cfg.Jobs.Delete(ctx, s.cfg.Outputs, q.Job)
}

func (s *Service) pause(r *Call) (any, error) {
	var q message.PauseRequest
	if err := wire.Bind(r.Fields, &q); err != nil {
		return nil, wire.BadRequest(err)
	}
	if _, ok := r.Fields.At("paused").(bool); !ok {
		return nil, wire.BadRequest(wire.BadField("paused", "is missing: want true or false"))
	}
	if err := s.cfg.Jobs.Pause(q.Paused); err != nil {
		return nil, err
	}
	queued, _ := s.cfg.Jobs.Busy()
	return message.PauseReply{
		V: message.ProtocolVersion, Daemon: s.cfg.Meter.Stats().Daemon, Paused: s.cfg.Jobs.Paused(), Queued: queued,
	}, nil
}

func (s *Service) describe(r *Call) (any, error) { return s.cfg.Reply(r, s.limits()) }

// Reply answers the verb describe; limits are part of it.
func (c *Classes) Reply(r *Call, limits message.LimitsReply) (any, error) {
	var q message.DescribeRequest
	if err := wire.Bind(r.Fields, &q); err != nil {
		return nil, wire.BadRequest(err)
	}
	out := message.DescribeReply{V: message.ProtocolVersion}
	switch {
	case q.Schema:
		out.Schema = Schema()
	case q.Limits:
		out.Limits, out.Devices = &limits, c.Devices
	case q.Model != nil:
		file, err := q.Model.Resolve(message.TensorReader{})
		if err != nil {
			return nil, wire.BadRequest(err)
		}
		if out.Model, err = c.Model(file); err != nil {
			return nil, err
		}
	default:
		out.Compat, out.Info, out.Limits, out.Devices = graph.Compat, c.Describe(q.Class), &limits, c.Devices
		if q.Class != "" && len(out.Info) == 0 {
			return nil, fault.New(fault.NoNodeType, "no node class %q", wire.Shown(q.Class))
		}
	}
	return out, nil
}

func (s *Service) models(*Call) (any, error) {
	return message.ModelsReply{V: message.ProtocolVersion, Models: s.cfg.Models()}, nil
}

func (s *Service) stats(*Call) (any, error) { return s.cfg.Meter.Stats(), nil }
