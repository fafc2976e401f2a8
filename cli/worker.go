package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
)

func workerCmd(version string) *cobra.Command {
	cfg := daemon.Config{Version: version}
	var inherited string
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run jobs for a host on stdin and stdout",
		Long: `worker answers run, exec, sample, load, free, describe, cancel and ping in frames on stdin and stdout, as the
daemon does on its socket (docs/protocol.md), so a host program can start it and needs no daemon. It keeps no jobs.
stdout carries frames only, logs go to stderr. When stdin closes, it exits within a second.`,
		Example: `  patchbay worker --models ~/ComfyUI/models`,
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			complete := cfg.CompleteModels
			if inherited != "" {
				complete = func() error { return cfg.Inherit(inherited) }
			}
			if err := complete(); err != nil {
				return err
			}
			in, out, err := frameFiles(cmd)
			if err != nil {
				return err
			}
			return daemon.RunWorker(cmd.Context(), &cfg, in, out, console.Logger(cmd.ErrOrStderr(), cfg.Log))
		},
	}
	settings.Inherited(cmd.Flags(), &inherited)
	settings.Folders(cmd.Flags(), &cfg)
	settings.Hosts(cmd.Flags(), &cfg)
	settings.Schedule(cmd.Flags(), &cfg)
	settings.Limits(cmd.Flags(), &cfg.Limits)
	return cmd
}

// frameFiles returns the streams for frames. It moves stdout to another descriptor and points fd 1 at stderr, so that
// a stray print in any library cannot corrupt the frames. In tests, where the command's streams are not those of the
// process, they are returned as they are.
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
