package wire

import (
	"errors"
	"fmt"
	"strings"

	"patchbay/fault"
	"patchbay/node/pyjson"
)

// InputError is a setting that a program cannot start with. The command line then exits with the code for bad input.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

func (e *InputError) Unwrap() error { return e.Err }

// TextLog is the environment variable that makes a worker log text for people: its daemon sets it if the daemon's own
// stderr is a terminal.
const TextLog = "PATCHBAY_LOG_TEXT"

// ErrNoServer is the error for a NATS server that cannot be reached.
var ErrNoServer = errors.New("no NATS server answers")

// Shown shortens text from a client to 200 bytes for an error: refusing it must not cost several times its size.
func Shown(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + fmt.Sprintf("... (%d bytes)", len(s))
}

// Short returns an error with its texts shortened and without its fields of unbounded length; nil stays nil.
func Short(e *fault.Error) *fault.Error {
	if e == nil {
		return nil
	}
	s := *e
	s.Text, s.Details, s.Field, s.Class = Shown(e.Text), Shown(e.Details), Shown(e.Field), Shown(e.Class)
	s.Extra, s.NodeErrors, s.Stack = nil, nil, ""
	return &s
}

// ErrorBody is the reply that carries an error: {"error": {...}, "node_errors": {...}}.
type ErrorBody struct {
	Error      *fault.Error   `json:"error"`
	NodeErrors map[string]any `json:"node_errors,omitempty"`
}

// BodyOf returns the reply that carries an error.
func BodyOf(e *fault.Error) ErrorBody { return ErrorBody{e, e.NodeErrors} }

// ReplyError returns the error that a reply consists of, or nil. Replies with a type, such as events, are not errors,
// even if they contain one.
func ReplyError(o *pyjson.Object) error {
	if _, ok := o.Get("type"); ok {
		return nil
	}
	var body ErrorBody
	switch err := Bind(o, &body); {
	case err != nil:
		return fault.New(fault.Internal, "an error that cannot be read: %v", err)
	case body.Error == nil:
		return nil
	}
	body.Error.NodeErrors = body.NodeErrors
	return body.Error
}
