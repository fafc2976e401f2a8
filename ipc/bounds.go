package ipc

import (
	"errors"
	"fmt"

	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// Bounds are what a Service takes from its clients. The length of the queue and the jobs of one client are those of its Jobs.
type Bounds struct {
	Message int // bytes of a request on NATS. 0: 64 MiB
	Frame   int // bytes of a request on socket and stdio. 0: 256 MiB
	Depth   int // nested lists and maps. 0: 64
	Values  int // values in all, keys included. 0: 262144
	Nodes   graph.Bounds
}

// orPreset fills in what is 0.
func (b Bounds) orPreset() Bounds {
	lim := DefaultLimits()
	for _, f := range []struct {
		field  *int
		preset int
	}{{&b.Message, lim.Bytes}, {&b.Frame, MaxFrame}, {&b.Depth, lim.Depth}, {&b.Values, lim.Items}} {
		if *f.field == 0 {
			*f.field = f.preset
		}
	}
	b.Frame = min(b.Frame, MaxFrame)
	return b
}

// message are the limits of a request on NATS, frame those of one in a frame.
func (b Bounds) message() Limits { return Limits{Bytes: b.Message, Depth: b.Depth, Items: b.Values} }
func (b Bounds) frame() Limits   { return Limits{Bytes: b.Frame, Depth: b.Depth, Items: b.Values} }

// BoundsReply is what describe tells of the bounds of a daemon; 0: none.
type BoundsReply struct {
	MessageBytes int   `json:"message_bytes"`
	FrameBytes   int   `json:"frame_bytes"`
	Depth        int   `json:"depth"`
	Values       int   `json:"values"`
	Queue        int   `json:"queue"`
	ClientJobs   int   `json:"client_jobs"`
	Pixels       int64 `json:"pixels"`
	Steps        int   `json:"steps"`
}

func (s *Service) limits() BoundsReply {
	b, j := s.cfg.Bounds, s.cfg.Jobs.cfg
	return BoundsReply{b.Message, b.Frame, b.Depth, b.Values, j.MaxQueued, j.MaxPerClient, b.Nodes.Pixels, b.Nodes.Steps}
}

// longBody is a body over the limit.
type longBody struct{ bytes, limit int }

// Error names both lengths.
func (e *longBody) Error() string {
	return fmt.Sprintf("body has %d bytes, the limit is %d", e.bytes, e.limit)
}

// undecodable is the reply to a body that Decode refuses.
func undecodable(err error) *Error {
	var long *longBody
	if errors.As(err, &long) {
		e := Errorf(ErrTooLarge, "%v; send large inputs as files in the input folder", err)
		e.Extra = map[string]any{"max": long.limit}
		return e
	}
	return Errorf(ErrBadRequest, "%v", err)
}

// clientOf is the name under which the jobs of a client are counted: the user that its reply subject belongs to, where that tells; or else what the request
// calls itself, in client (text, or a map with id). All who have no name are one.
func clientOf(r *Request, req *RunRequest) string {
	name := r.From
	switch c := req.Client.(type) {
	case string:
		name = orText(name, c)
	case *pyjson.Object:
		id, _ := c.Get("id")
		text, _ := id.(string)
		name = orText(name, text)
	}
	return name[:min(len(name), 128)]
}

func orText(text, preset string) string {
	if text == "" {
		return preset
	}
	return text
}

// refusedJob is the reply to a job that the table did not take.
func (s *Service) refusedJob(req *RunRequest, err error) *Error {
	after := func(e *Error, ms int) *Error {
		e.RetryAfterMS = ms
		return e
	}
	switch {
	case errors.Is(err, errHash):
		return Errorf(ErrDuplicate, "a job %s exists with another body; choose another id", req.ID)
	case errors.Is(err, errFull):
		return after(Errorf(ErrQueueFull, "the queue is full: %d jobs are waiting", s.cfg.Jobs.cfg.MaxQueued), 1000)
	case errors.Is(err, errCrowd):
		return after(Errorf(ErrQueueFull, "client %q has %d jobs that have not ended, and may have no more", req.from, s.cfg.Jobs.cfg.MaxPerClient), 1000)
	case errors.Is(err, errStore):
		return after(Errorf(ErrDiskFull, "%v; make room, then send the job again with the same id", err), 5000)
	case errors.Is(err, errClosed):
		return Errorf(ErrDraining, "the daemon is shutting down")
	}
	return after(Errorf(ErrNoCapacity, "the job could not be written down: %v; send it again with the same id", err), 1000)
}
