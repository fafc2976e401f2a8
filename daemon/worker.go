package daemon

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/rs/zerolog"

	"patchbay/ipc/jobs"
	"patchbay/ipc/worker"
	"patchbay/node/classes"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

// RunWorker answers requests in frames, read from in and written to out, until in ends, the context is done, or SIGTERM
// or SIGINT comes. With save, outputs are written into the output folder too.
func RunWorker(parent context.Context, cfg *Config, in io.ReadCloser, out io.Writer, log zerolog.Logger,
	save bool,
) error {
	log = log.With().Int("worker_pid", os.Getpid()).Logger()
	executor, cat, closing, err := localExecutor(cfg, log)
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
	wc := worker.Config{Executor: executor, Service: worker.NodeService(cat, cfg.Roots(), nil, nil), Log: log}
	wc.Service.Limits = limits
	if save {
		wc.Outputs = jobs.OutputsConfig{
			Stage:  filepath.Join(cfg.Output, fmt.Sprintf(".patchbay-stage-%d", os.Getpid())),
			Output: cfg.Output,
		}
	}
	log.Debug().Interface("config", cfg).Msg("worker starts")
	return worker.Run(ctx, context.Background(), in, out, wc)
}

// localExecutor makes the engine, the runner and the executor on them. The function gives them back.
func localExecutor(cfg *Config, log zerolog.Logger) (*worker.Local, *graph.Catalogue, func(), error) {
	budget, err := ParseBytes(cfg.Memory)
	if err != nil {
		return nil, nil, nil, err
	}
	limits, err := cfg.Limits.Check()
	if err != nil {
		return nil, nil, nil, err
	}
	if budget == 0 {
		budget = availableMemory() / 10 * 9
	}
	machine, err := cfg.Machine()
	if err != nil {
		return nil, nil, nil, err
	}
	eng, err := parallel.NewEngine(parallel.Config{NewOps: NewOps, MemoryBytes: budget, Machine: machine})
	if err != nil {
		return nil, nil, nil, err
	}
	cat := classes.All()
	runner, err := graph.NewRunner(graph.Config{
		Engine: eng, Roots: cfg.Roots(), Compute: value.Compute(cfg.Compute),
		Catalogue: cat, WeightBytes: budget, Bounds: limits.Nodes,
	})
	if err != nil {
		eng.Close()
		return nil, nil, nil, err
	}
	log.Info().Str("device", eng.Name()).Int64("memory", budget).Msg("engine ready")
	return worker.NewLocal("local", runner), cat, func() { runner.Close(); eng.Close() }, nil
}
