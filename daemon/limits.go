package daemon

import (
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/node/graph"
)

// Check returns the limits in the form that package serve takes, or an *InputError.
func (l *Limits) Check() (serve.Limits, error) {
	bad := func(format string, args ...any) (serve.Limits, error) { return serve.Limits{}, refuse(format, args...) }
	if l.Err != nil {
		return bad("%w", l.Err)
	}
	message, err := ParseBytes(l.Message)
	if err != nil {
		return bad("--max-message %w", err)
	}
	pixels, err := ParseBytes(l.Pixels)
	if err != nil {
		return bad("--max-pixels %w", err)
	}
	switch {
	case message != 0 && (message < 1<<10 || message > wire.MaxFrame):
		return bad("--max-message %s: want 1K to 256M", l.Message)
	case l.Depth < 8 || l.Depth > 64:
		return bad("--max-depth %d: want 8 to 64", l.Depth)
	case l.Steps < 1 || l.Steps > 10000:
		return bad("--max-steps %d: want 1 to 10000", l.Steps)
	case l.Queued && (l.Queue < 1 || l.Queue > 100000):
		return bad("--max-queue %d: want 1 to 100000", l.Queue)
	case l.Client < 0:
		return bad("--max-client-jobs %d: want 0 or more", l.Client)
	}
	return serve.Limits{
		Message: int(message), Frame: int(message), Depth: l.Depth,
		Nodes: graph.Bounds{Pixels: pixels, Steps: l.Steps},
	}, nil
}
