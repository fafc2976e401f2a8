package ipc

import (
	"context"
	"time"

	"patchbay/node/pyjson"
)

// ExecRequest asks for one node to be run: the door for hosts that bring nodes of their own.
type ExecRequest struct {
	Class   string         `json:"class_type"`
	Inputs  *pyjson.Object `json:"inputs,omitempty"`   // literals, tensors, {"$handle": id}, and lists and maps of them
	Want    []int          `json:"want,omitempty"`     // output slots to return; empty: all
	LeaseMS int            `json:"lease_ms,omitempty"` // how long handles are kept without use; 0: 15 minutes
	Plan    string         `json:"plan,omitempty"`
	// Files are found by LoadImage and LoadLatent, by name.
	Files map[string][]byte `json:"files,omitempty"`

	hold *hold
}

func (q *ExecRequest) holds() *hold { return q.hold }

// ExecReply carries the wanted outputs in order: by value, except MODEL, CLIP and VAE (and what holds them), which are handles
// {"$handle": id, "type": "MODEL", "expires": Unix milliseconds}.
type ExecReply struct {
	V        int            `json:"v"`
	Outputs  []any          `json:"outputs"`
	Files    []File         `json:"files,omitempty"` // what an output node would save; it is not saved
	Timings  map[string]any `json:"timings,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
	Worker   string         `json:"worker,omitempty"`

	hold *hold
}

func (q *ExecReply) holds() *hold { return q.hold }

// FreeRequest gives up handles and the weights of models; without any named, the worker drops all handles, caches and weights.
type FreeRequest struct {
	Handles []string `json:"handles,omitempty"`
	Models  []string `json:"models,omitempty"` // files, as load and sample name them
}

// FreeReply tells how many handles were dropped, and how many bytes of weights of diffusion models.
type FreeReply struct {
	V     int   `json:"v"`
	Freed int   `json:"freed"`
	Bytes int64 `json:"bytes"`
}

// handleKey marks a handle in a message.
const handleKey = "$handle"

func (s *Service) exec(r *Request) error {
	var q ExecRequest
	if err := Bind(r.Fields, &q); err != nil {
		return Errorf(ErrBadRequest, "%v", err)
	}
	q.hold = r.hold
	if q.Class == "" {
		return Errorf(ErrBadRequest, "field class_type is missing")
	}
	ex, err := s.executorFor(q.Inputs)
	if err != nil {
		return err
	}
	s.spawn(r, func(ctx context.Context) error {
		if err := ex.Ready(ctx); err != nil {
			return Errorf(ErrNoCapacity, "no worker became ready: %v", err)
		}
		out, err := ex.Exec(ctx, &q)
		if err != nil {
			return err
		}
		out.V, out.Worker = ProtocolVersion, ex.Name()
		s.renew(q.Inputs)
		s.own(out.Outputs, ex)
		defer out.hold.release()
		return r.Reply.Last(out)
	})
	return nil
}

func (s *Service) free(r *Request) error {
	var q FreeRequest
	if err := Bind(r.Fields, &q); err != nil {
		return Errorf(ErrBadRequest, "%v", err)
	}
	s.spawn(r, func(ctx context.Context) error {
		total := FreeReply{V: ProtocolVersion}
		for _, ex := range s.cfg.Executors {
			if err := ex.Ready(ctx); err != nil {
				return Errorf(ErrNoCapacity, "no worker became ready: %v", err)
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

// executorFor returns the worker that holds the handles among the inputs, or the next one in turn.
func (s *Service) executorFor(inputs any) (Executor, error) {
	var ids []string
	walkHandles(inputs, func(id string) { ids = append(ids, id) })
	s.mu.Lock()
	defer s.mu.Unlock()
	var owner Executor
	for _, id := range ids {
		o, ok := s.owners[id]
		if !ok {
			return nil, Errorf(ErrNoHandle, "no handle %q: it was freed, its lease ran out, or its worker restarted", shown(id))
		}
		if owner != nil && owner != o.ex {
			return nil, Errorf(ErrNoHandle, "handle %q is on %s, another one on %s; load both with one worker", id, o.ex.Name(), owner.Name())
		}
		owner = o.ex
	}
	if owner == nil {
		owner = s.cfg.Executors[int(s.next.Add(1)-1)%len(s.cfg.Executors)]
	}
	return owner, nil
}

// ownership says which worker holds a handle, and until when by what is known here. Whether it still does is the worker's to say.
type ownership struct {
	ex    Executor
	lease time.Duration
	until time.Time
}

// forgetLate is how long after the end of its lease a handle is forgotten here: the clocks of daemon and worker are read at different moments.
const forgetLate = time.Minute

// renew notes that handles were used.
func (s *Service) renew(inputs any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	walkHandles(inputs, func(id string) {
		if o := s.owners[id]; o != nil {
			o.until = s.cfg.Jobs.cfg.Now().Add(o.lease)
		}
	})
}

// own notes which worker holds the handles in v, and forgets handles whose lease is over.
func (s *Service) own(v any, ex Executor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Jobs.cfg.Now()
	for id, o := range s.owners {
		if now.Sub(o.until) > forgetLate {
			delete(s.owners, id)
		}
	}
	eachHandle(v, func(id string, h *pyjson.Object) {
		o := &ownership{ex: ex, until: now}
		if ms, ok := h.Get("expires"); ok {
			if n, ok := ms.(int64); ok {
				o.until = time.UnixMilli(n)
			}
		}
		o.lease = max(o.until.Sub(now), 0)
		s.owners[id] = o
	})
}

// walkHandles calls f with the id of every handle in a decoded value.
func walkHandles(v any, f func(id string)) {
	eachHandle(v, func(id string, _ *pyjson.Object) { f(id) })
}

// eachHandle calls f with every handle in a decoded value.
func eachHandle(v any, f func(id string, h *pyjson.Object)) {
	switch x := v.(type) {
	case []any:
		for _, e := range x {
			eachHandle(e, f)
		}
	case *pyjson.Object:
		if x == nil {
			return
		}
		if id, ok := x.Get(handleKey); ok {
			if s, ok := id.(string); ok {
				f(s, x)
			}
			return
		}
		for _, k := range x.Keys() {
			e, _ := x.Get(k)
			eachHandle(e, f)
		}
	}
}
