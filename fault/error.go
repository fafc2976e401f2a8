package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"patchbay/engine/datafile"
	"patchbay/parallel/failure"
)

// Failure is why a workflow was refused or a job ended early. It carries all that ComfyUI's error body and
// execution_error event need.
type Error struct {
	Code       string         // one of the Code constants; the validation codes are ComfyUI's error types
	Text       string         // one line, lower case unless it is ComfyUI's text
	Details    string         // more of it; may be empty
	Node       string         // id of the node at fault; empty: the whole workflow
	Class      string         // class_type of that node
	Field      string         // input of that node, or field of the message
	Extra      map[string]any // extra_info of ComfyUI's error body
	NodeErrors map[string]any // ComfyUI's node_errors by node id; nil: none
	Trace      []string       // Go stack of a panic, innermost first
	Cause      error
}

// Codes of a workflow that is refused: ComfyUI's error types, and two of ours.
const (
	NoPrompt         = "no_prompt"
	InvalidPrompt    = "invalid_prompt"
	MissingNodeType  = "missing_node_type"
	NoOutputs        = "prompt_no_outputs"
	OutputsFailed    = "prompt_outputs_failed_validation"
	WorkflowTooLarge = "workflow_too_large" // ours: limits on size, depth and node count
	WorkflowFormatUI = "workflow_format_ui" // a graph in the editor's format that cannot be converted
)

// Codes that a job can end with after it was accepted, and those of single nodes.
const (
	Cancelled        = "cancelled"
	OutOfMemory      = "out_of_memory"
	FileMissing      = "file_missing"
	FileOutsideRoot  = "file_outside_root"
	BadCheckpoint    = "bad_checkpoint" // unreadable, truncated, or of a family that is not known
	FileChanged      = "file_changed"   // written to while it was read, or its disk failed
	WrongFamily      = "wrong_family"   // the file is fine but not what the node or its neighbours need
	TokenizerMissing = "tokenizer_missing"
	BadImage         = "bad_image"
	BadInput         = "bad_input" // a value that only shows as wrong when the node runs
	DiskFull         = "disk_full"
	DeadlineExceeded = "deadline_exceeded"
	Panic            = "internal_panic"
	Internal         = "internal"
	UnknownHandle    = "unknown_handle"
	UnknownClass     = "unknown_class"
	PlanRefused      = "plan_refused"
	HostLost         = "host_lost" // a process with ranks is gone; the job may run again
)

// Error returns "message: details", with the node in front.
func (f *Error) Error() string {
	s := f.Text
	if f.Details != "" {
		s += ": " + f.Details
	}
	if f.Node != "" {
		s = fmt.Sprintf("node %s (%s): %s", f.Node, f.Class, s)
	}
	return s
}

// Unwrap returns the error that caused the failure, or nil.
func (f *Error) Unwrap() error { return f.Cause }

// New returns a Failure with the given code and message.
func New(code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// At returns a Failure that names an input.
func At(code, field, format string, args ...any) *Error {
	f := New(code, format, args...)
	f.Field = field
	return f
}

// Named is At with the name of the input in front of the message.
func Named(code, field, format string, args ...any) *Error {
	return At(code, field, "%s: %s", field, fmt.Sprintf(format, args...))
}

// Bad is Named for a value that only shows as wrong when the node runs.
func Bad(field, format string, args ...any) *Error {
	return Named(BadInput, field, format, args...)
}

// Family is Named for a file or value that is not what the node or its neighbors need.
func Family(field, format string, args ...any) *Error {
	return Named(WrongFamily, field, format, args...)
}

// Wrap returns a Failure with the text of the error that caused it. Its code is CodeFileChanged whatever code says if a
// file changed while it was read.
func Wrap(code, field string, err error) *Error {
	if _, ok := errors.AsType[*datafile.ReadError](err); ok {
		code = FileChanged
	}
	return &Error{Code: code, Text: err.Error(), Field: field, Cause: err}
}

// From turns any error into a Failure; one that is a Failure already is copied, so that the caller may fill in the
// node.
func From(err error) *Error {
	if f, ok := errors.AsType[*Error](err); ok {
		c := *f
		return &c
	}
	code := Internal
	switch {
	case errors.Is(err, context.Canceled):
		code = Cancelled
	case errors.Is(err, context.DeadlineExceeded):
		code = DeadlineExceeded
	case IsDiskFull(err):
		code = DiskFull
	}
	return Wrap(code, "", err)
}

// Of is From for errors of the engine, whose code, field and stack are kept. An error of ctx itself, its deadline too,
// counts as cancelled.
func Of(ctx context.Context, err error) *Error {
	f := From(err)
	if e, ok := errors.AsType[*failure.Error](err); ok && (f.Code == Internal || f.Code == FileChanged) {
		f.Code = cmp.Or(map[failure.Code]string{
			failure.Cancelled: Cancelled, failure.OutOfMemory: OutOfMemory, failure.Panic: Panic,
			failure.DeviceLost: Panic, failure.LoadFailed: BadCheckpoint, failure.PlanRefused: PlanRefused,
			failure.FileChanged: FileChanged,
			failure.HostLost:    HostLost, failure.BadRequest: BadInput,
		}[e.Code], f.Code)
		f.Field = cmp.Or(f.Field, e.Field)
		if e.Stack != "" {
			f.Trace = strings.Split(strings.TrimSpace(e.Stack), "\n")
		}
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		f.Code = Cancelled
	}
	return f
}

// List joins names for an error message and cuts the list off after twenty.
func List(names []string) string {
	switch {
	case len(names) == 0:
		return "(none)"
	case len(names) > 20:
		return strings.Join(names[:20], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
