// Package console is how every command speaks with the person or program that has started it: exit codes, tables, the
// progress of a job, and what its sampling runs say of themselves. It knows no command.
package console

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"patchbay/ipc/client"
	"patchbay/ipc/wire"
)

// The exit codes of all commands.
const (
	ExitFailed    = 1 // the job, or the command itself, failed
	ExitBadInput  = 2 // the command line, a setting or the workflow was refused
	ExitNoDaemon  = 3 // no daemon, or none of the NATS server that one is to use
	ExitCancelled = 130
)

// ExitError carries an exit code. A nil Err has been printed already.
type ExitError struct {
	Code int
	Err  error
}

// Error is the text of Err.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

// Report prints an error that nobody has printed yet and returns the exit code of the program.
func Report(errs io.Writer, err error) int {
	if exit, ok := errors.AsType[*ExitError](err); ok {
		if exit.Err != nil {
			Printf(errs, "patchbay: %v\n", exit.Err)
		}
		return exit.Code
	}
	if input, ok := errors.AsType[*wire.InputError](err); ok {
		Printf(errs, "patchbay: %v\n", input.Err)
		return ExitBadInput
	}
	if errors.Is(err, context.DeadlineExceeded) { // of a question to a daemon
		err = fmt.Errorf("%w: nothing was heard of it in time", client.ErrNoDaemon)
	}
	Printf(errs, "patchbay: %v\n", err)
	return codeFor(err)
}

// BadInput is an error of the command line or of a workflow.
func BadInput(err error) error { return &ExitError{ExitBadInput, err} }

// Exit is an error with an exit code.
func Exit(code int, err error) error { return &ExitError{code, err} }

// codeFor is the exit code of an error that does not say its own.
func codeFor(err error) int {
	var e *wire.Error
	switch {
	case errors.Is(err, client.ErrNoDaemon) || errors.Is(err, client.ErrSilent) || errors.Is(err, wire.ErrNoServer):
		return ExitNoDaemon
	case errors.As(err, &e) && e.Code == wire.ErrCancelled:
		return ExitCancelled
	case errors.As(err, &e) && (e.Status == 400 || e.Status == 409 || e.Status == 413 || e.Status == 415 ||
		e.Status == 422):
		return ExitBadInput
	}
	return ExitFailed
}

// ErrInterrupted is the cause of a wait that Ctrl-C has ended.
var ErrInterrupted = errors.New("interrupted")

// ExactArgs refuses another number of arguments with the exit code of bad input.
func ExactArgs(n int) cobra.PositionalArgs { return Args(cobra.ExactArgs(n)) }

// Args refuses with the exit code of bad input the arguments that check refuses.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return BadInput(fmt.Errorf("%w; see patchbay %s --help", err, cmd.Name()))
		}
		return nil
	}
}
