package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/pflag"

	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/node/graph"
)

// bounds are what clients may ask for, as flags and environment say it.
type bounds struct {
	Message string `json:"message,omitempty"` // bytes
	Depth   int    `json:"depth,omitempty"`
	Pixels  string `json:"pixels,omitempty"`
	Steps   int    `json:"steps,omitempty"`
	Queue   int    `json:"queue,omitempty"`       // serve only
	Client  int    `json:"client_jobs,omitempty"` // serve only
	queued  bool   // the last two are there
	err     error  // of the environment
}

// add adds the flags of daemon and worker.
func (b *bounds) add(f *pflag.FlagSet) {
	f.StringVar(&b.Message, "max-message", os.Getenv("PATCHBAY_MAX_MESSAGE"), "largest request, as in 16M (default 64M on NATS, 256M on socket and stdio)")
	f.IntVar(&b.Depth, "max-depth", b.number("PATCHBAY_MAX_DEPTH", 64), "how deep lists and maps of a request may be nested")
	f.StringVar(&b.Pixels, "max-pixels", os.Getenv("PATCHBAY_MAX_PIXELS"), "largest picture or latent: width x height x batch, as in 4M (default: any)")
	f.IntVar(&b.Steps, "max-steps", b.number("PATCHBAY_MAX_STEPS", 10000), "most steps of one sampling run")
}

// addJobs adds the flags of the daemon's queue.
func (b *bounds) addJobs(f *pflag.FlagSet) {
	b.queued = true
	f.IntVar(&b.Queue, "max-queue", b.number("PATCHBAY_MAX_QUEUE", 10000), "most jobs that wait")
	f.IntVar(&b.Client, "max-client-jobs", b.number("PATCHBAY_MAX_CLIENT_JOBS", 0), "most jobs of one client that have not ended; 0: any number")
}

// number reads a variable; a bad one is told by check.
func (b *bounds) number(variable string, preset int) int {
	text := os.Getenv(variable)
	if text == "" {
		return preset
	}
	n, err := strconv.Atoi(text)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("%s: %q is no number", variable, text)
	}
	return n
}

// check returns the bounds as the service takes them.
func (b *bounds) check() (serve.Limits, error) {
	bad := func(format string, args ...any) (serve.Limits, error) {
		return serve.Limits{}, &exitError{exitBadInput, fmt.Errorf(format, args...)}
	}
	if b.err != nil {
		return bad("%w", b.err)
	}
	message, err := parseBytes(b.Message)
	if err != nil {
		return bad("--max-message %w", err)
	}
	pixels, err := parseBytes(b.Pixels)
	if err != nil {
		return bad("--max-pixels %w", err)
	}
	switch {
	case message != 0 && (message < 1<<10 || message > wire.MaxFrame):
		return bad("--max-message %s: want 1K to 256M", b.Message)
	case b.Depth < 8 || b.Depth > 64:
		return bad("--max-depth %d: want 8 to 64", b.Depth)
	case b.Steps < 1 || b.Steps > 10000:
		return bad("--max-steps %d: want 1 to 10000", b.Steps)
	case b.queued && (b.Queue < 1 || b.Queue > 100000):
		return bad("--max-queue %d: want 1 to 100000", b.Queue)
	case b.Client < 0:
		return bad("--max-client-jobs %d: want 0 or more", b.Client)
	}
	return serve.Limits{Message: int(message), Frame: int(message), Depth: b.Depth, Nodes: graph.Bounds{Pixels: pixels, Steps: b.Steps}}, nil
}

// workerArgs are the flags that a worker shares with its daemon. The daemon has looked at the messages of clients: what it sends itself is bounded by the
// protocol only, whatever the environment says.
func (b *bounds) workerArgs() []string {
	args := []string{"--max-message", "256M", "--max-depth", "64"}
	if b.Steps != 0 { // 0: of a command that has no limits of its own
		args = append(args, "--max-steps", strconv.Itoa(b.Steps))
	}
	if b.Pixels != "" {
		args = append(args, "--max-pixels", b.Pixels)
	}
	return args
}
