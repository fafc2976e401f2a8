package serve

import (
	"cmp"
	"errors"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/graph"
)

// Limits bound what a Service accepts from its clients. The limits of the queue and of the jobs of one client are in
// the configuration of its Jobs.
type Limits struct {
	Message int // bytes of a request on NATS. 0: 64 MiB
	Frame   int // bytes of a request on socket and stdio. 0: 256 MiB
	Depth   int // nested lists and maps. 0: 64
	Values  int // values in all, keys included. 0: 262144
	Nodes   graph.Bounds
}

// orPreset replaces zeros by the defaults.
func (b Limits) orPreset() Limits {
	lim := wire.DefaultLimits()
	b.Message, b.Frame = cmp.Or(b.Message, lim.Bytes), min(cmp.Or(b.Frame, wire.MaxFrame), wire.MaxFrame)
	b.Depth, b.Values = cmp.Or(b.Depth, lim.Depth), cmp.Or(b.Values, lim.Items)
	return b
}

// message returns the limits of a request on NATS, frame those of one in a frame.
func (b Limits) message() wire.Limits {
	return wire.Limits{Bytes: b.Message, Depth: b.Depth, Items: b.Values}
}

func (b Limits) frame() wire.Limits {
	return wire.Limits{Bytes: b.Frame, Depth: b.Depth, Items: b.Values}
}

func (s *Service) limits() message.LimitsReply {
	out, j := s.cfg.Limits.Reply(), s.cfg.Jobs.Config()
	out.Queue, out.ClientJobs = j.MaxQueued, j.MaxPerClient
	return out
}

// Reply returns the limits as the verb describe shows them, without those of a queue.
func (b Limits) Reply() message.LimitsReply {
	b = b.orPreset()
	return message.LimitsReply{
		MessageBytes: b.Message, FrameBytes: b.Frame, Depth: b.Depth, Values: b.Values, Pixels: b.Nodes.Pixels,
		Steps: b.Nodes.Steps,
	}
}

// undecodable returns the error for a body that Decode refuses.
func undecodable(err error) *fault.Error {
	if long, ok := errors.AsType[*wire.LongBody](err); ok {
		e := fault.New(fault.TooLarge, "%v; send large inputs as files in the input folder", err)
		e.Extra = map[string]any{"max": long.Limit}
		return e
	}
	return fault.New(fault.BadRequest, "%v", err)
}

func shuttingDown() *fault.Error { return fault.New(fault.Draining, "the daemon is shutting down") }

// refusedJob returns the error for a job that the table did not take.
func (s *Service) refusedJob(req *message.RunRequest, err error) *fault.Error {
	after := func(e *fault.Error, ms int) *fault.Error {
		e.RetryAfterMS = ms
		return e
	}
	var refused *fault.Error
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, jobs.ErrHash):
		return fault.New(fault.Duplicate, "a job %s exists with another body; choose another id", req.ID)
	case errors.Is(err, jobs.ErrFull):
		return after(fault.New(fault.QueueFull, "the queue is full: %d jobs are waiting", s.cfg.Jobs.Config().MaxQueued),
			1000)
	case errors.Is(err, jobs.ErrCrowd):
		return after(fault.New(fault.QueueFull, "client %q has %d jobs that have not ended, and may have no more",
			req.From, s.cfg.Jobs.Config().MaxPerClient), 1000)
	case errors.Is(err, jobs.ErrStore):
		return after(fault.New(fault.DiskFull, "%v; make room, then send the job again with the same id", err), 5000)
	case errors.Is(err, jobs.ErrClosed):
		return shuttingDown()
	}
	return after(fault.New(fault.NoCapacity,
		"the job could not be written down: %v; send it again with the same id", err), 1000)
}
