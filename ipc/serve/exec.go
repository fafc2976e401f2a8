package serve

import (
	"context"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// ExecRequest reads and checks the body of exec.
func (r *Call) ExecRequest() (*message.ExecRequest, error) {
	q := &message.ExecRequest{}
	if err := wire.Bind(r.Fields, q); err != nil {
		return nil, wire.BadRequest(err)
	}
	q.Hold = r.hold
	if err := message.CheckMS("lease_ms", q.LeaseMS); err != nil {
		return nil, wire.BadRequest(err)
	}
	if q.Class == "" {
		return nil, fault.New(fault.BadRequest, "field class_type is missing")
	}
	return q, nil
}

func (s *Service) exec(r *Call) error {
	q, err := r.ExecRequest()
	if err != nil {
		return err
	}
	ex, err := s.executorFor(q.Inputs)
	if err != nil {
		return err
	}
	s.Spawn(r, func(ctx context.Context) error {
		if err := ex.Ready(ctx); err != nil {
			return fault.New(fault.NoCapacity, "no worker became ready: %v", err)
		}
		out, err := ex.Exec(ctx, q)
		if err != nil {
			return err
		}
		out.V, out.Worker = message.ProtocolVersion, ex.Name()
		s.renew(q.Inputs)
		s.own(out.Outputs, ex)
		defer out.Hold.Release()
		return r.Reply.Last(out)
	})
	return nil
}

func (s *Service) free(r *Call) error {
	var q message.FreeRequest
	if err := wire.Bind(r.Fields, &q); err != nil {
		return wire.BadRequest(err)
	}
	s.Spawn(r, func(ctx context.Context) error {
		total := message.FreeReply{V: message.ProtocolVersion}
		for _, ex := range s.cfg.Executors {
			if err := ex.Ready(ctx); err != nil {
				return fault.New(fault.NoCapacity, "no worker became ready: %v", err)
			}
			out, err := ex.Free(ctx, &q)
			if err != nil {
				return err
			}
			total.Freed, total.Bytes = total.Freed+out.Freed, total.Bytes+out.Bytes
		}
		s.mu.Lock()
		if len(q.Handles)+len(q.Models) == 0 {
			clear(s.owners)
		}
		for _, h := range q.Handles {
			delete(s.owners, h)
		}
		s.mu.Unlock()
		return r.Reply.Last(total)
	})
	return nil
}

// executorFor returns the executor that holds the handles among the inputs, or the next one in turn.
func (s *Service) executorFor(inputs any) (jobs.Executor, error) {
	var ids []string
	message.EachHandle(inputs, func(id string, _ *pyjson.Object) { ids = append(ids, id) })
	s.mu.Lock()
	defer s.mu.Unlock()
	var owner jobs.Executor
	for _, id := range ids {
		o, ok := s.owners[id]
		if !ok {
			return nil, fault.New(fault.NoHandle,
				"no handle %q: it was freed, its lease ran out, or its worker restarted", wire.Shown(id))
		}
		if owner != nil && owner != o.ex {
			return nil, fault.New(fault.NoHandle, "handle %q is on %s, another one on %s; load both with one worker", id,
				o.ex.Name(), owner.Name())
		}
		owner = o.ex
	}
	if owner == nil {
		owner = s.inTurn()
	}
	return owner, nil
}

func (s *Service) inTurn() jobs.Executor {
	return s.cfg.Executors[int(s.next.Add(1)-1)%len(s.cfg.Executors)]
}

// ownership says which worker holds a handle, and until when as far as is known here. The worker decides whether it
// still does.
type ownership struct {
	ex    jobs.Executor
	lease time.Duration
	until time.Time
}

// forgetLate is how long a handle is remembered here after the end of its lease: daemon and worker read their clocks at
// different moments.
const forgetLate = time.Minute

// renew extends the leases of handles that were used.
func (s *Service) renew(inputs any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	message.EachHandle(inputs, func(id string, _ *pyjson.Object) {
		if o := s.owners[id]; o != nil {
			o.until = s.cfg.Jobs.Config().Now().Add(o.lease)
		}
	})
}

// own records which worker holds the handles in v, and forgets handles whose lease is over.
func (s *Service) own(v any, ex jobs.Executor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Jobs.Config().Now()
	for id, o := range s.owners {
		if now.Sub(o.until) > forgetLate {
			delete(s.owners, id)
		}
	}
	message.EachHandle(v, func(id string, h *pyjson.Object) {
		o := &ownership{ex: ex}
		if ms, ok := h.Get("expires"); ok {
			if n, ok := ms.(int64); ok {
				o.lease = max(time.UnixMilli(n).Sub(now), 0)
			}
		}
		o.until = now.Add(o.lease)
		s.owners[id] = o
	})
}
