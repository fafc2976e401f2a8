package worker

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/jobs"
	"patchbay/ipc/serve"
)

// Config is the configuration of a worker process.
type Config struct {
	Executor jobs.Executor
	Classes  serve.Classes
	Limits   serve.Limits
	Jobs     int // that the Executor runs at the same time; 0: one
	// Private says that a daemon is at the other end, which has validated what it sends and keeps the jobs.
	Private   bool
	Heartbeat time.Duration // the longest silence of a run. 0: 2 s
	Log       zerolog.Logger
	// Exit ends the process; nil: os.Exit. It is called when work has not stopped 700 ms after Run has stopped serving.
	Exit func(code int)
}

// exitWithin is how long after it has stopped serving, as at the end of its stdin, a worker may still exist.
const exitWithin = 700 * time.Millisecond

// Run answers requests on in and out until in or ctx ends. When in ends, the host is gone: jobs are cancelled, and if
// some do not stop, the process exits within a second. When ctx ends, a running job may finish until drain ends.
func Run(ctx, drain context.Context, in io.ReadCloser, out io.Writer, cfg Config) error {
	s := newServer(cfg)
	err := (&serve.Stdio{In: in, Out: out}).Serve(ctx, drain, s.Answerer)
	exit := cfg.Exit
	if exit == nil {
		exit = os.Exit
	}
	code := 0
	if err != nil {
		code = 1
	}
	last := time.AfterFunc(exitWithin, func() {
		cfg.Log.Warn().Msg("work did not stop in time; the process ends now")
		exit(code)
	})
	defer last.Stop()
	s.Close()
	return err
}
