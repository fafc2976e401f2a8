package wire

import (
	"errors"
	"fmt"
	"strings"

	"patchbay/node/pyjson"
)

// Error is an error as clients see it: the value of "error" in every error reply and in the terminal event of a failed
// job.
type Error struct {
	Code         string         `json:"code"`   // one of the Err constants
	Status       int            `json:"status"` // the number of the code, as in the Nats-Service-Error-Code header
	Type         string         `json:"type,omitempty"`
	Message      string         `json:"message"`
	Details      string         `json:"details,omitempty"`
	Node         string         `json:"node,omitempty"`
	Class        string         `json:"class_type,omitempty"`
	Input        string         `json:"input,omitempty"`
	Extra        map[string]any `json:"extra_info,omitempty"`
	Retryable    bool           `json:"retryable"`
	RetryAfterMS int            `json:"retry_after_ms,omitempty"`
	Trace        []string       `json:"trace,omitempty"`
	NodeErrors   map[string]any `json:"-"` // stands beside "error", as in ComfyUI's body
}

// InputError is a setting that a program cannot start with. The command line then exits with the code for bad input.
type InputError struct{ Err error }

// Error returns the text of Err.
func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InputError) Unwrap() error { return e.Err }

// TextLog is the environment variable that makes a worker log text for people: its daemon sets it if the daemon's own
// stderr is a terminal.
const TextLog = "PATCHBAY_LOG_TEXT"

// ErrNoServer is the error for a NATS server that cannot be reached.
var ErrNoServer = errors.New("no NATS server answers")

// The codes of errors. The table below gives their numbers; docs/protocol.md lists them for clients.
const (
	ErrBadRequest  = "bad_request"
	ErrEmptyBody   = "empty_body"
	ErrNoJob       = "no_such_job"
	ErrNoModel     = "no_such_model"
	ErrNoNodeType  = "no_such_node_type"
	ErrNoHandle    = "no_such_handle"
	ErrNoVerb      = "no_such_verb"
	ErrDuplicate   = "duplicate_conflict"
	ErrExpired     = "expired"
	ErrTooLarge    = "too_large"
	ErrPayload     = "bad_payload"
	ErrUnsupported = "unsupported_format"
	ErrBadWorkflow = "bad_workflow"
	ErrPlanRefused = "plan_refused"
	ErrQueueFull   = "queue_full"
	ErrCancelled   = "cancelled"
	ErrInternal    = "internal"
	ErrWorkerLost  = "worker_lost"
	ErrNoCapacity  = "no_capacity"
	ErrDraining    = "draining"
	ErrDeadline    = "deadline"
	ErrOutOfMemory = "out_of_memory"
	ErrDiskFull    = "disk_full"
	ErrFileChanged = "file_changed"
)

// ErrorCode is one row of the table of errors.
type ErrorCode struct {
	Code      string
	Status    int
	Retryable bool   // the same request may succeed later or elsewhere
	When      string // when it is returned, for docs/protocol.md
}

// ErrorTable returns every code that a reply may carry, in the order of docs/protocol.md.
func ErrorTable() []ErrorCode {
	return []ErrorCode{
		{ErrBadRequest, 400, false, "the body cannot be decoded, was refused by the guard, or a field has the wrong type"},
		{ErrEmptyBody, 400, false, "run, submit, sample or exec without a body"},
		{ErrNoJob, 404, false, "no job of that id"},
		{ErrNoModel, 404, false, "a file named by the workflow is not in the models folders"},
		{ErrNoNodeType, 404, false, "exec or describe names a class that is not in the catalogue"},
		{ErrNoHandle, 404, false, "the handle was freed, its lease ran out, or its worker restarted"},
		{ErrNoVerb, 404, false, "op is not a verb"},
		{ErrDuplicate, 409, false, "a job of that id exists with another body"},
		{ErrExpired, 410, false, "the job waited longer than its queue_ttl_ms, or its result is gone"},
		{ErrPayload, 422, false, "bytes that the message refers to could not be fetched, or are not what it says"},
		{ErrTooLarge, 413, false, "a body, reply, workflow, picture or number of steps is over its limit"},
		{ErrUnsupported, 415, false, "neither JSON nor msgpack; or a file of a format or family that is not supported"},
		{ErrBadWorkflow, 422, false, "the workflow was refused; type and node_errors are ComfyUI's"},
		{ErrPlanRefused, 422, false, "the plan cannot split this model or picture; details name the rule and a plan that " +
			"can"},
		{ErrQueueFull, 429, true, "too many jobs are waiting, or the client has too many"},
		{ErrCancelled, 499, false, "the job was cancelled"},
		{ErrInternal, 500, false, "a fault of the program"},
		{ErrWorkerLost, 500, true, "the worker that ran the job died or hung; details name the cause"},
		{ErrNoCapacity, 503, true, "no worker can take the request"},
		{ErrFileChanged, 503, true, "a model file was written to while it was read, or its disk failed; message names it"},
		{ErrDraining, 503, true, "the daemon is shutting down"},
		{ErrDeadline, 504, false, "the job ran longer than its deadline_ms"},
		{ErrOutOfMemory, 507, false, "memory ran out"},
		{ErrDiskFull, 507, true, "an output file or the job store could not be written: no space, or a limit on file size"},
	}
}

// codeOf returns the row of a code; a code that is not in the table is a bug in this package.
func codeOf(code string) ErrorCode {
	for _, c := range ErrorTable() {
		if c.Code == code {
			return c
		}
	}
	panic("ipc: error code " + code + " is not in the table")
}

// Errorf returns an Error of the given code.
func Errorf(code, format string, args ...any) *Error {
	c := codeOf(code)
	return &Error{Code: c.Code, Status: c.Status, Retryable: c.Retryable, Message: fmt.Sprintf(format, args...)}
}

// Shown shortens text from a client to 200 bytes for an error: refusing it must not cost several times its size.
func Shown(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + fmt.Sprintf("... (%d bytes)", len(s))
}

// Error returns "code: message: details", with the node in front of the message.
func (e *Error) Error() string {
	s := e.Message
	if e.Details != "" {
		s += ": " + e.Details
	}
	if e.Node != "" {
		s = fmt.Sprintf("node %s (%s): %s", e.Node, e.Class, s)
	}
	return e.Code + ": " + s
}

// Short returns the error with its texts shortened and without its fields of unbounded length; nil stays nil.
func (e *Error) Short() *Error {
	if e == nil {
		return nil
	}
	s := *e
	s.Message, s.Details, s.Input, s.Class = Shown(e.Message), Shown(e.Details), Shown(e.Input), Shown(e.Class)
	s.Extra, s.Trace, s.NodeErrors = nil, nil, nil
	return &s
}

// ErrorBody is the reply that carries an Error: {"error": {...}, "node_errors": {...}}.
type ErrorBody struct {
	Error      *Error         `json:"error"`
	NodeErrors map[string]any `json:"node_errors,omitempty"`
}

// Body returns the reply that carries the error.
func (e *Error) Body() ErrorBody { return ErrorBody{e, e.NodeErrors} }

// ReplyError returns the error that a reply consists of, or nil. Replies with a type, such as events, are not errors,
// even if they contain one.
func ReplyError(o *pyjson.Object) error {
	if _, ok := o.Get("type"); ok {
		return nil
	}
	var body ErrorBody
	switch err := Bind(o, &body); {
	case err != nil:
		return Errorf(ErrInternal, "an error that cannot be read: %v", err)
	case body.Error == nil:
		return nil
	}
	body.Error.NodeErrors = body.NodeErrors
	return body.Error
}
