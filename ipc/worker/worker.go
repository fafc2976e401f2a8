package worker

import (
	"context"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/bulk"
	"patchbay/ipc/jobs"
	"patchbay/ipc/serve"
)

// Config is what a worker process serves.
type Config struct {
	Executor jobs.Executor
	Service  serve.ServiceConfig // Jobs, Outputs and Executors are made here
	Outputs  jobs.OutputsConfig  // empty: files are only sent
	Jobs     int                 // that the Executor runs at the same time; 0: one
	Log      zerolog.Logger
	// Exit ends the process; nil: os.Exit. It is called when the host is gone and work did not stop within the time a
	// worker has for it.
	Exit func(code int)
}

// exitWithin is how long after the end of its stdin a worker may still be there.
const exitWithin = 700 * time.Millisecond

// Run answers requests on in and out until in ends or ctx ends. When in ends, the host is gone: jobs are cancelled, and
// what does not stop is cut off by the end of the process, within a second. When ctx ends, a running job may finish
// until drain ends.
func Run(ctx, drain context.Context, in io.ReadCloser, out io.Writer, cfg Config) error {
	outputs, err := jobs.NewOutputs(cfg.Outputs)
	if err != nil {
		return err
	}
	// Whoever started the worker decides whether a job whose rank died runs again.
	table := jobs.New(jobs.Config{Keep: 4, OnForget: outputs.Forget, Renew: true, MaxAttempts: 1})
	sc := cfg.Service
	sc.Jobs, sc.Outputs, sc.Executors, sc.Log = table, outputs, []jobs.Executor{cfg.Executor}, cfg.Log
	sc.Checked = private(in)
	if sc.Tensors == nil {
		sc.Tensors = bulk.NewTensorCache(bulk.TensorBytes)
	}
	svc := serve.NewService(sc)
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	take, halt := context.WithCancel(run)
	defer halt()
	done := make(chan struct{})
	go func() {
		d := jobs.Dispatcher{Jobs: table, Outputs: outputs, Log: cfg.Log, Trace: true}
		d.Work(take, run, slices.Repeat(sc.Executors, max(1, cfg.Jobs)))
		close(done)
	}()
	err = (&serve.Stdio{In: in, Out: out}).Serve(ctx, drain, svc)
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
	halt()
	stop()
	<-done
	svc.Close()
	return err
}

// daemonVariable names the daemon, by its process id, to the workers that it starts.
const daemonVariable = "PATCHBAY_DAEMON"

// private reports whether in is the socket pair of the daemon that started this process. What comes there was
// validated; any other host is a stranger.
func private(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok || os.Getenv(daemonVariable) != strconv.Itoa(os.Getppid()) {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode().Type() == os.ModeSocket
}
