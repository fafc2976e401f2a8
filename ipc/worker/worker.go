package worker

import (
	"context"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/jobs"
	"patchbay/ipc/serve"
)

// Config is the configuration of a worker process.
type Config struct {
	Executor jobs.Executor
	Service  serve.ServiceConfig // Run sets Jobs, Outputs, Executors, Log and Checked
	Outputs  jobs.OutputsConfig  // empty: files are sent but not saved
	Jobs     int                 // that the Executor runs at the same time; 0: one
	Log      zerolog.Logger
	// Exit ends the process; nil: os.Exit. It is called when work has not stopped 700 ms after Run has stopped serving.
	Exit func(code int)
}

// exitWithin is how long after it has stopped serving, as at the end of its stdin, a worker may still exist.
const exitWithin = 700 * time.Millisecond

// Run answers requests on in and out until in or ctx ends. When in ends, the host is gone: jobs are cancelled, and if
// some do not stop, the process exits within a second. When ctx ends, a running job may finish until drain ends.
func Run(ctx, drain context.Context, in io.ReadCloser, out io.Writer, cfg Config) error {
	outputs, err := jobs.NewOutputs(cfg.Outputs)
	if err != nil {
		return err
	}
	// Whoever started the worker decides whether a job whose rank died runs again.
	table := jobs.New(jobs.Config{Keep: 4, OnForget: outputs.Forget, Renew: true, MaxAttempts: 1})
	sc := cfg.Service
	sc.Jobs, sc.Outputs, sc.Executors, sc.Log = table, outputs, []jobs.Executor{cfg.Executor}, cfg.Log
	sc.Checked = startedByDaemon(in)
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

// daemonVariable is the environment variable with the process id of the daemon that started a worker.
const daemonVariable = "PATCHBAY_DAEMON"

// startedByDaemon reports whether in is the socket pair of the daemon that started this process. Requests from there
// have been validated; any other host is untrusted.
func startedByDaemon(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok || os.Getenv(daemonVariable) != strconv.Itoa(os.Getppid()) {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode().Type() == os.ModeSocket
}
