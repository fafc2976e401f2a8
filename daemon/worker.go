package daemon

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/rs/zerolog"

	"patchbay/ipc/worker"
	"patchbay/node/classes"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

// RunWorker answers requests in frames, read from in and written to out, until in ends, the context is done, or SIGTERM
// or SIGINT comes.
func RunWorker(parent context.Context, cfg *Config, in io.ReadCloser, out io.Writer, log zerolog.Logger) error {
	log = log.With().Int("worker_pid", os.Getpid()).Logger()
	lost := func(err error) { // the daemon starts another worker, which gets the job
		log.Error().Err(err).Msg("the worker ends")
		os.Exit(1)
	}
	executor, cat, closing, err := localExecutor(cfg, log, lost)
	if err != nil {
		return err
	}
	defer closing()
	ctx, stop := signal.NotifyContext(parent, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	limits, err := cfg.Limits.Check()
	if err != nil {
		return err
	}
	known := worker.Classes(cat, cfg.Roots(), nil, nil)
	known.Devices = cfg.places()
	log.Debug().Interface("config", cfg).Msg("worker starts")
	return worker.Run(ctx, context.Background(), in, out, worker.Config{
		Executor: executor, Classes: known, Limits: limits, Jobs: cfg.jobs(), Private: cfg.Private, Log: log,
	})
}

// logLoaded returns a Config.Loaded that logs.
func logLoaded(log zerolog.Logger) func(device, kernels string) {
	return func(device, kernels string) {
		log.Info().Str("device", device).Str("kernels", kernels).Msg("GPU opened")
	}
}

// localExecutor creates the engine, the runner and the executor on them. lost is called when a device is lost to the
// process. The returned function closes them.
func localExecutor(cfg *Config, log zerolog.Logger, lost func(error)) (*worker.Local, *graph.Catalogue, func(), error) {
	limits, err := cfg.Limits.Check()
	if err != nil {
		return nil, nil, nil, err
	}
	logged := *cfg
	logged.Loaded = logLoaded(log)
	ec, release, err := logged.EngineConfig()
	if err != nil {
		return nil, nil, nil, err
	}
	if cfg.Hosts != "" {
		there, err := cfg.newHosts(log)
		if err != nil {
			return nil, nil, nil, errors.Join(err, release())
		}
		ec.Processes, ec.Ranks = there, 0
		device := release
		release = func() error { there.Close(); return device() }
	}
	var runner *graph.Runner
	memory, ledger, err := cfg.bound(&ec, func() { runner.ShedValues() }, log)
	if err != nil {
		return nil, nil, nil, errors.Join(err, release())
	}
	room := memory
	if memory > 0 {
		room = ledger.Room()
		limits.Nodes.Reserve = func(n int64) {
			if ledger.Spare(n) {
				return
			}
			if runner.ShedValues(); !ledger.Spare(n) {
				runner.FreeWeights()
			}
		}
	}
	share := shareOf(room, &limits.Nodes)
	ec.Lost = lost
	eng, err := parallel.NewPool(ec)
	if err != nil {
		return nil, nil, nil, errors.Join(err, release())
	}
	cat := classes.All()
	runner, err = graph.NewRunner(graph.Config{
		Engine: eng, Roots: cfg.Roots(), Compute: value.Compute(cfg.Compute),
		Catalogue: cat, CacheBytes: share, Bounds: limits.Nodes, Jobs: cfg.jobs(),
	})
	if err != nil {
		eng.Close()
		return nil, nil, nil, errors.Join(err, release())
	}
	log.Info().Str("device", eng.Name()).Int64("memory", memory).Str("rates", eng.Rates()).Msg("engine ready")
	closing := func() {
		runner.Close()
		eng.Close()
		if err := release(); err != nil {
			log.Warn().Err(err).Msg("the device was not released completely")
		}
	}
	executor := worker.NewLocal("local", runner, cfg.FreeAfter)
	if executor.Resume, err = cfg.resume(log); err != nil {
		closing()
		return nil, nil, nil, err
	}
	return executor, cat, closing, nil
}
