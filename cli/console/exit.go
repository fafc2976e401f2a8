// Package console is how commands talk to the person or program that started them: exit codes, tables, the progress of
// a job, and statistics of its sampling runs. It knows no command.
package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/wire"
)

// The exit codes of all commands.
const (
	ExitFailed    = 1 // the job, or the command itself, failed
	ExitBadInput  = 2 // the command line, a setting or the workflow was refused
	ExitNoDaemon  = 3 // no daemon answers, or the NATS server that serve was told to use does not
	ExitCancelled = 130
)

// ExitError is an error with an exit code. If Err is nil, the error has been printed already.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the text of Err, or the exit code if Err is nil.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Report prints an error, unless that was done already, and returns the exit code of the program.
func Report(errs io.Writer, err error) int {
	if exit, ok := errors.AsType[*ExitError](err); ok {
		if exit.Err != nil {
			Printf(errs, "patchbay: %s\n", withCode(exit.Err))
		}
		return exit.Code
	}
	if input, ok := errors.AsType[*wire.InputError](err); ok {
		Printf(errs, "patchbay: %v\n", input.Err)
		return ExitBadInput
	}
	if errors.Is(err, context.DeadlineExceeded) { // from a request to a daemon
		err = fmt.Errorf("%w: nothing was heard of it in time", client.ErrNoDaemon)
	}
	Printf(errs, "patchbay: %s\n", withCode(err))
	return codeFor(err)
}

// withCode returns the text of an error with the code of the *fault.Error in it, if there is one.
func withCode(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*fault.Error](err); ok {
		text = strings.Replace(text, e.Error(), e.Line(), 1)
	}
	return text
}

// BadInput marks err as an error of the command line or of a workflow.
func BadInput(err error) error { return &ExitError{ExitBadInput, err} }

// Exit returns an error with an exit code; err may be nil, see ExitError.
func Exit(code int, err error) error { return &ExitError{code, err} }

// codeFor returns the exit code of an error that does not carry one.
func codeFor(err error) int {
	var e *fault.Error
	switch {
	case errors.Is(err, client.ErrNoDaemon) || errors.Is(err, client.ErrSilent) || errors.Is(err, wire.ErrNoServer):
		return ExitNoDaemon
	case errors.As(err, &e) && e.Public() == fault.Cancelled:
		return ExitCancelled
	case errors.As(err, &e) && (e.Status() == 400 || e.Status() == 409 || e.Status() == 413 || e.Status() == 415 ||
		e.Status() == 422):
		return ExitBadInput
	}
	return ExitFailed
}

// ErrInterrupted is the cancellation cause of a wait that Ctrl-C ended.
var ErrInterrupted = errors.New("interrupted")

// ExactArgs requires exactly n arguments; anything else is bad input.
func ExactArgs(n int) cobra.PositionalArgs { return Args(cobra.ExactArgs(n)) }

// Group makes cmd a command of the given ones, which shows help by itself. A script that misspells one must not go on.
func Group(cmd *cobra.Command, of ...*cobra.Command) *cobra.Command {
	cmd.Args = Args(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(of...)
	return cmd
}

// Args wraps check so that the arguments that it refuses are bad input.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return BadInput(fmt.Errorf("%w; see patchbay %s --help", err, cmd.Name()))
		}
		return nil
	}
}
