package serve

import (
	"context"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// For carriers that answer in another form than that of the verb: what follows counts, checks and limits requests as
// Handle does, and returns the answer.

// Submit answers the verb submit.
func (s *Service) Submit(r *Call) (req *message.RunRequest, receipt message.Receipt, err error) {
	s.cfg.Meter.Asked(r.Verb)
	_, err = message.Guarded(func() (struct{}, error) {
		var err error
		req, receipt, err = s.accept(r)
		return struct{}{}, err
	})
	if err != nil {
		s.cfg.Meter.Refuse(fault.From(err))
	}
	return req, receipt, err
}

// Ask answers a verb with one reply, which it binds to out.
func (s *Service) Ask(ctx context.Context, r *Call, out any) error {
	type answer struct {
		body    []byte
		failure *fault.Error
	}
	replied := make(chan answer, 1)
	gone := make(chan struct{})
	r.Gone = gone
	r.Reply = &Reply{Enc: wire.JSON, Limit: s.cfg.Limits.Frame, Send: func(parts [][]byte, _ []int, failure *fault.Error,
		end bool,
	) error {
		a := answer{failure: failure}
		for _, p := range parts {
			a.body = append(a.body, p...)
		}
		if end {
			replied <- a
		}
		return nil
	}}
	s.Handle(r)
	select {
	case <-ctx.Done():
		close(gone)
		return ctx.Err()
	case a := <-replied:
		if a.failure != nil || out == nil {
			return errorOf(a.failure)
		}
		v, err := pyjson.Decode(a.body)
		if err != nil {
			return err
		}
		fields, _ := v.(*pyjson.Object)
		return wire.BindReply(fields, out)
	}
}

// File returns file i of a job, from this daemon or the one that has it.
func (s *Service) File(ctx context.Context, rec *message.Record, i int) ([]byte, error) {
	if err := filesDropped(rec); err != nil {
		return nil, err
	}
	silent := &Reply{Enc: wire.JSON, Limit: s.cfg.Limits.Frame, Send: func([][]byte, []int, *fault.Error, bool) error {
		return nil
	}}
	return s.files(ctx, silent, rec.Job)(i)
}

// errorOf keeps a nil fault from becoming an error that is not nil.
func errorOf(e *fault.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// Decode decodes the body of a request in JSON within the limits of a frame.
func (a *Answerer) Decode(body []byte) (*pyjson.Object, error) {
	o, err := wire.Decode(body, wire.JSON, a.cfg.Limits.frame())
	if err != nil {
		return nil, undecodable(err)
	}
	return o, nil
}
