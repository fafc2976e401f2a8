// Command patchbay runs ComfyUI workflows on one or several devices: as a daemon, as a worker of a host, or once from the shell.
//
// One file per command (cmd_*.go); flags.go the flags that several share; everything else is in the packages below.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/ipc/wire"
)

// version is set by the linker (-X main.version=...).
var version = "dev"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// The exit codes of run, watch and get; other commands use 0 and 1.
const (
	exitFailed    = 1 // the job failed
	exitBadInput  = 2 // the command line or the workflow was refused
	exitNoDaemon  = 3
	exitCancelled = 130
)

// exitError carries an exit code. A nil err has been printed already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// run is main without the process: it returns the exit code.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	root := rootCmd()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.Execute()
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			printf(errs, "patchbay: %v\n", exit.err)
		}
		return exit.code
	}
	var input *daemon.InputError
	if errors.As(err, &input) {
		printf(errs, "patchbay: %v\n", input.Err)
		return exitBadInput
	}
	printf(errs, "patchbay: %v\n", err)
	return codeFor(err)
}

// printf writes to a stream of the command. When that is gone, as in a pipe to head, nobody is left to be told.
func printf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// closeQuietly closes what was only read, or whose end nobody waits for.
func closeQuietly(c io.Closer) { _ = c.Close() }

// codeFor is the exit code of an error that does not say its own.
func codeFor(err error) int {
	var e *wire.Error
	switch {
	case errors.Is(err, client.ErrNoDaemon):
		return exitNoDaemon
	case errors.As(err, &e) && e.Code == wire.ErrCancelled:
		return exitCancelled
	case errors.As(err, &e) && (e.Status == 400 || e.Status == 409 || e.Status == 413 || e.Status == 415 || e.Status == 422):
		return exitBadInput
	case errors.As(err, &e):
		return exitFailed
	}
	return exitFailed
}

func rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "patchbay",
		Short: "Run ComfyUI workflows on one or several devices",
		Long: `Patchbay runs ComfyUI workflows. A daemon (serve) takes them over NATS or a unix socket; a host program can start a worker
itself and talk to it over stdin and stdout; run does one workflow from the shell.

Environment:
  PATCHBAY_NATS_URL  NATS server of the daemon (default ` + wire.DefaultNATS + `)
  PATCHBAY_SOCKET    unix socket of the daemon (default $XDG_RUNTIME_DIR/patchbay.sock)
  PATCHBAY_MODELS    folders laid out like ComfyUI's models folder, separated by ':'
  PATCHBAY_HOME      everything else (default ~/.local/share/patchbay)
  PATCHBAY_CPU       instruction set: generic, avx2, avx512 or avx512bf16 (default: the best there is)`,
		Example: `  patchbay demo
  patchbay serve --models ~/ComfyUI/models
  patchbay run flow.json --set 3.seed=7 --out pictures`,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitBadInput, err} })
	root.AddCommand(serveCmd(), workerCmd(), runCmd(), submitCmd(), jobsCmd(), watchCmd(), getCmd(), cancelCmd(), retryCmd(), topCmd(), nodesCmd(), modelsCmd(),
		demoCmd(), planCmd(), benchCmd(), doctorCmd(), installNodeCmd(), versionCmd())
	return root
}
