package ipc

import (
	"context"
	"slices"

	"patchbay/node/graph"
)

// accept validates a request for a job and puts it into the table.
func (s *Service) accept(r *Request) (*RunRequest, Receipt, error) {
	req, w, fault := parseRun(r.Fields, s.cfg.Bounds.frame())
	if fault != nil {
		return nil, Receipt{}, fault
	}
	req.from = clientOf(r, req)
	if id := r.MsgID; id != "" && !holds(r.Fields, "id") && !holds(r.Fields, "prompt_id") {
		if !validID(id) {
			return nil, Receipt{}, Errorf(ErrBadRequest, "header Nats-Msg-Id %q is no job id: want 1 to 64 of A-Z a-z 0-9 _ -", shown(id))
		}
		req.ID = id
	}
	req.Tied = r.Verb == VerbRun && (r.Tied || req.Tied)
	nodeErrors, err := s.cfg.Validate(req, w)
	if err != nil {
		return nil, Receipt{}, s.cfg.Jobs.located(err)
	}
	if fault := s.cfg.Bounds.Nodes.Workflow(w); fault != nil {
		return nil, Receipt{}, fault
	}
	if s.cfg.Needs != nil {
		req.files = s.cfg.Needs(req, w)
		if fault := s.cfg.Jobs.place(req); fault != nil {
			return nil, Receipt{}, fault
		}
	}
	req.hold = r.hold.retain() // the table's, until the job has ended
	rec, created, err := s.cfg.Jobs.Create(s.ctx, req, hashOf(req, w))
	if !created {
		req.hold.release()
	}
	if err != nil {
		return nil, Receipt{}, s.refusedJob(req, err)
	}
	return req, Receipt{
		V: ProtocolVersion, Type: replyAccepted, Job: rec.Job, State: rec.State, Position: rec.Position, Duplicate: !created,
		Events: EventSubject(rec.Job, ">"), Status: VerbSubject(VerbStatus, rec.Job), NodeErrors: nodeErrors,
	}, nil
}

func (s *Service) submit(r *Request) error {
	_, receipt, err := s.accept(r)
	if err != nil {
		return err
	}
	s.sent(r.Reply.Last(receipt))
	return nil
}

func (s *Service) run(r *Request) error {
	req, receipt, err := s.accept(r)
	if err != nil {
		return err
	}
	if err := r.Reply.Message(receipt); err != nil {
		s.sent(err)
	}
	st := stream{job: receipt.Job, preview: req.Preview, outputs: true, tied: !receipt.Duplicate && req.Tied}
	s.spawn(r, func(ctx context.Context) error { return s.stream(ctx, r, st) })
	return nil
}

// recordReply is the record of a job as a reply.
type recordReply struct {
	Type string `json:"type"` // "record"
	Record
}

func (s *Service) jobRequest(r *Request) (jobRequest, Record, error) {
	var q jobRequest
	if err := Bind(r.Fields, &q); err != nil {
		return q, Record{}, Errorf(ErrBadRequest, "%v", err)
	}
	if r.Job != "" {
		q.Job = r.Job
	}
	if q.Job == "" {
		return q, Record{}, Errorf(ErrBadRequest, "field job is missing")
	}
	rec, err := s.cfg.Jobs.Get(s.ctx, q.Job)
	if err != nil {
		return q, rec, Errorf(ErrNoJob, "no job %q here", shown(q.Job))
	}
	return q, rec, nil
}

func (s *Service) status(r *Request) error {
	q, rec, err := s.jobRequest(r)
	if err != nil {
		return err
	}
	reply := recordReply{"record", rec}
	if !q.Follow && !q.Outputs {
		s.sent(r.Reply.Last(reply))
		return nil
	}
	if err := r.Reply.Message(reply); err != nil {
		s.sent(err)
	}
	s.spawn(r, func(ctx context.Context) error {
		if q.Follow {
			return s.stream(ctx, r, stream{job: q.Job, from: q.From, preview: q.Preview, outputs: q.Outputs})
		}
		if rec.State != Done {
			return Errorf(ErrExpired, "job %s is %s and has no files", q.Job, rec.State)
		}
		if err := s.sendFiles(ctx, r.Reply, rec); err != nil {
			return err
		}
		return r.Reply.End()
	})
	return nil
}

func (s *Service) jobs(r *Request) error {
	var q jobsRequest
	if err := Bind(r.Fields, &q); err != nil {
		return Errorf(ErrBadRequest, "%v", err)
	}
	if q.State != "" && !slices.Contains(states(), State(q.State)) {
		return badRequest(badField("state", "%q: want one of %v, or leave it out", q.State, states()))
	}
	if q.Limit <= 0 {
		q.Limit = 100
	}
	list, counts, err := s.cfg.Jobs.List(s.ctx, State(q.State), q.Limit)
	if err != nil {
		return err
	}
	for i := range list { // a list shows what a table shows; the rest is in status
		list[i].Metrics, list[i].NodeError, list[i].Files = nil, nil, nil
	}
	s.sent(r.Reply.Last(jobsReply{V: ProtocolVersion, Jobs: list, Counts: counts}))
	return nil
}

func (s *Service) cancel(r *Request) error {
	q, _, err := s.jobRequest(r)
	if err != nil {
		return err
	}
	state, did, err := s.cfg.Jobs.Cancel(s.ctx, q.Job)
	if err != nil {
		return err
	}
	s.sent(r.Reply.Last(cancelReply{V: ProtocolVersion, Job: q.Job, Cancelled: did, State: state}))
	return nil
}

func (s *Service) retry(r *Request) error {
	q, _, err := s.jobRequest(r)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(s.ctx, askTime)
	defer stop()
	rec, err := s.cfg.Jobs.Retry(ctx, q.Job)
	if err != nil {
		return err
	}
	s.sent(r.Reply.Last(retryReply{V: ProtocolVersion, Job: q.Job, State: rec.State}))
	return nil
}

func (s *Service) describe(r *Request) error {
	var q describeRequest
	if err := Bind(r.Fields, &q); err != nil {
		return Errorf(ErrBadRequest, "%v", err)
	}
	if q.Schema {
		s.sent(r.Reply.Last(describeReply{V: ProtocolVersion, Schema: Schema()}))
		return nil
	}
	limits := s.limits()
	if q.Limits {
		s.sent(r.Reply.Last(describeReply{V: ProtocolVersion, Limits: &limits}))
		return nil
	}
	info := s.cfg.Describe(q.Class)
	if q.Class != "" && len(info) == 0 {
		return Errorf(ErrNoNodeType, "no node class %q", shown(q.Class))
	}
	s.sent(r.Reply.Last(describeReply{V: ProtocolVersion, Compat: graph.Compat, Info: info, Limits: &limits}))
	return nil
}
