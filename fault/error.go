// Package fault says what went wrong, with one type of error from the reader of files up to the clients: a code, a
// text, and where that is known the node and the input at fault. The table of codes (codes.go) says what clients see of
// each (form.go). It imports no other package of the program, and all may use it.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Error is why a request was refused or a job ended early. It carries all that ComfyUI's error body and
// execution_error event need.
type Error struct {
	Code         string         // one of the constants; RowOf says what follows from it
	Text         string         // one line, lower case unless it is ComfyUI's text
	Details      string         // more of it; may be empty
	Node         string         // id of the node at fault; empty: the whole workflow
	Class        string         // class_type of that node
	Field        string         // input of that node, or field of the message or of request.Request
	Extra        map[string]any // extra_info of ComfyUI's error body
	NodeErrors   map[string]any // ComfyUI's node_errors by node id; nil: none
	RetryAfterMS int            // when to send the request again; 0: not said
	Stack        string         // Go stack of a panic, innermost first
	Cause        error          // what Text was made of, for errors.Is and the operator's log
}

// Error returns "text: details", with the node in front.
func (e *Error) Error() string {
	s := e.Text
	if e.Details != "" {
		s += ": " + e.Details
	}
	if e.Node != "" {
		s = fmt.Sprintf("node %s (%s): %s", e.Node, e.Class, s)
	}
	return s
}

func (e *Error) Unwrap() error { return e.Cause }

// Public returns the code that clients see.
func (e *Error) Public() string { return RowOf(e.Code).Public }

// Status returns the number of the code, as in the header Nats-Service-Error-Code.
func (e *Error) Status() int { return RowOf(e.Code).Status }

// Retryable reports whether the same request may succeed later or elsewhere.
func (e *Error) Retryable() bool { return RowOf(e.Code).Retryable }

// Line returns the error with the code that clients see in front.
func (e *Error) Line() string { return e.Public() + ": " + e.Error() }

// New returns an Error with the given code and text.
func New(code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// At returns an Error that names an input.
func At(code, field, format string, args ...any) *Error {
	e := New(code, format, args...)
	e.Field = field
	return e
}

// Named is At with the name of the input in front of the text.
func Named(code, field, format string, args ...any) *Error {
	return At(code, field, "%s: %s", field, fmt.Sprintf(format, args...))
}

// Bad is Named for a value that only shows as wrong when the node runs, and for a field of a sampling run.
func Bad(field, format string, args ...any) *Error {
	return Named(BadInput, field, format, args...)
}

// Family is Named for a file or value that is not what the node or its neighbors need.
func Family(field, format string, args ...any) *Error {
	return Named(WrongFamily, field, format, args...)
}

// Cancel returns an Error with code Cancelled.
func Cancel(cause error) *Error { return Wrap(Cancelled, "", fmt.Errorf("cancelled: %w", cause)) }

// Wrap returns an Error with the text of the error that caused it. Its code is FileChanged whatever code says if a file
// changed while it was read.
func Wrap(code, field string, err error) *Error {
	if Is(err, FileChanged) {
		code = FileChanged
	}
	return &Error{Code: code, Text: err.Error(), Field: field, Cause: err}
}

// Is reports whether there is an Error of a code in the chain of err.
func Is(err error, code string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e != nil && e.Code == code
}

// From turns any error into an Error, nil into nil. An Error in the chain of err is copied, so that the caller may fill
// in the node; text around it is kept unless it names a node already.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		if e == nil {
			return nil
		}
		c := *e
		if text := err.Error(); text != e.Text && e.Node == "" && e.Details == "" {
			c.Text, c.Cause = text, err
		}
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
