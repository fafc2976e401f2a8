package worker

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/bulk"
	"patchbay/ipc/jobs"
	"patchbay/ipc/serve"
)

// Config is what a worker process serves.
type Config struct {
	Executor jobs.Executor
	Service  serve.ServiceConfig // Jobs, Shelf and Executors are made here
	Shelf    jobs.ShelfConfig    // empty: files are only sent
	Log      zerolog.Logger
	// Exit ends the process; nil: os.Exit. It is called when the host is gone and work did not stop within the time a worker has for it.
	Exit func(code int)
}

// exitWithin is how long after the end of its stdin a worker may still be there.
const exitWithin = 700 * time.Millisecond

// Run answers requests on in and out until in ends or ctx ends. When in ends, the host is gone: jobs are cancelled, and what does not stop is cut off
// by the end of the process, within a second. When ctx ends, a running job may finish until drain ends.
func Run(ctx, drain context.Context, in io.ReadCloser, out io.Writer, cfg Config) error {
	shelf, err := jobs.NewShelf(cfg.Shelf)
	if err != nil {
		return err
	}
	table := jobs.New(jobs.Config{Keep: 4, OnForget: shelf.Forget})
	sc := cfg.Service
	sc.Jobs, sc.Shelf, sc.Executors, sc.Log = table, shelf, []jobs.Executor{cfg.Executor}, cfg.Log
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
		d := jobs.Dispatcher{Jobs: table, Shelf: shelf, Log: cfg.Log, Trace: true}
		d.Work(take, run, sc.Executors)
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
