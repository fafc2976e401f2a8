package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"patchbay/ipc/jobs"
	"patchbay/ipc/worker"
	"patchbay/node/classes"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

func workerCmd() *cobra.Command {
	var cfg config
	var save bool
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run jobs for a host on stdin and stdout",
		Long: `worker answers requests in frames on stdin and stdout (docs/protocol.md): the same protocol that the daemon speaks, so a host program
can start it and needs no daemon. stdout carries frames only, logs go to stderr. When stdin closes, it exits within a second.`,
		Example: `  patchbay worker --models ~/ComfyUI/models`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.complete(); err != nil {
				return err
			}
			return serveWorker(cmd, &cfg, save)
		},
	}
	cfg.addFolders(cmd.Flags())
	cfg.Bounds.add(cmd.Flags())
	cmd.Flags().BoolVar(&save, "save", false, "write outputs into the output folder too")
	return cmd
}

func serveWorker(cmd *cobra.Command, cfg *config, save bool) error {
	in, out, err := frameFiles(cmd)
	if err != nil {
		return err
	}
	log := cfg.logger(cmd.ErrOrStderr()).With().Int("worker_pid", os.Getpid()).Logger()
	executor, cat, closing, err := localExecutor(cfg, log)
	if err != nil {
		return err
	}
	defer closing()
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	limits, err := cfg.Bounds.check()
	if err != nil {
		return err
	}
	wc := worker.Config{Executor: executor, Service: worker.NodeService(cat, cfg.roots(), nil, nil), Log: log}
	wc.Service.Limits = limits
	if save {
		wc.Outputs = jobs.OutputsConfig{Stage: filepath.Join(cfg.Output, fmt.Sprintf(".patchbay-stage-%d", os.Getpid())), Output: cfg.Output}
	}
	log.Debug().Interface("config", cfg).Msg("worker starts")
	return worker.Run(ctx, context.Background(), in, out, wc)
}

// frameFiles takes stdin and stdout for frames and points fd 1 at stderr, so that a stray print of any library cannot break the frames. In tests
// the command has other streams than the process; those are used as they are.
func frameFiles(cmd *cobra.Command) (io.ReadCloser, io.Writer, error) {
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok {
		return nil, nil, errors.New("worker: stdin is not a file")
	}
	out, ok := cmd.OutOrStdout().(*os.File)
	if !ok || out.Fd() != 1 {
		return in, cmd.OutOrStdout(), nil
	}
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, nil, fmt.Errorf("worker: keep stdout: %w", err)
	}
	if err := unix.Dup2(2, 1); err != nil {
		return nil, nil, fmt.Errorf("worker: point stdout at stderr: %w", err)
	}
	return in, os.NewFile(uintptr(fd), "frames"), nil
}

// localExecutor makes the engine, the runner and the executor on them. The function gives them back.
func localExecutor(cfg *config, log zerolog.Logger) (*worker.Local, *graph.Catalogue, func(), error) {
	budget, err := parseBytes(cfg.Memory)
	if err != nil {
		return nil, nil, nil, err
	}
	limits, err := cfg.Bounds.check()
	if err != nil {
		return nil, nil, nil, err
	}
	if budget == 0 {
		budget = availableMemory() / 10 * 9
	}
	machine, err := cfg.machine()
	if err != nil {
		return nil, nil, nil, err
	}
	eng, err := parallel.NewEngine(parallel.Config{NewOps: newOps, MemoryBytes: budget, Machine: machine})
	if err != nil {
		return nil, nil, nil, err
	}
	cat := classes.All()
	runner, err := graph.NewRunner(graph.Config{Engine: eng, Roots: cfg.roots(), Compute: value.Compute(cfg.Compute), Catalogue: cat, WeightBytes: budget, Bounds: limits.Nodes})
	if err != nil {
		eng.Close()
		return nil, nil, nil, err
	}
	log.Info().Str("device", eng.Name()).Int64("memory", budget).Msg("engine ready")
	return worker.NewLocal("local", runner), cat, func() { runner.Close(); eng.Close() }, nil
}
