// Package failure defines the error with which sampling refuses or fails: a code, the field it is about, and a message
// for people. It knows no request, plan or device. Package parallel and the packages below it refuse with this error;
// their callers decide by Code what to do.
package failure

import "fmt"

// Code classifies an Error for clients.
type Code string

// The codes. BadRequest: the request is invalid; Field, if set, is a field of request.Request. PlanRefused: the plan
// cannot run. OutOfMemory: a rank or device has too little memory; if that was known before work started, Text says how
// much is needed. Cancelled: the caller ended the request. Panic: a bug in a rank, a sampler or a kernel.
const (
	BadRequest  Code = "bad_request"
	PlanRefused Code = "plan_refused"
	OutOfMemory Code = "out_of_memory"
	Cancelled   Code = "cancelled"
	Panic       Code = "internal_panic"
	LoadFailed  Code = "bad_checkpoint"
	FileChanged Code = "file_changed" // while it was read, or its disk failed; the request may be retried
	HostLost    Code = "host_lost"    // a process of ranks exited or did not start; the request may be retried
	PeerLost    Code = "rank_lost"    // a rank hangs, missed an exchange, or issued a different one
	DeviceLost  Code = "device_lost"  // nothing runs on a device until the process is restarted
)

// Error is what the entry points of package parallel return when they refuse or fail.
type Error struct {
	Code  Code
	Field string // field of Request the error is about, may be empty
	Text  string // what is wrong and what is allowed
	Cause error  // may be nil
	Stack string // of a panic
}

// Error returns "field: text: cause", without field and cause where these are empty.
func (e *Error) Error() string {
	s := e.Text
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Refuse returns an Error with code BadRequest about a field of the request.
func Refuse(field, format string, args ...any) *Error {
	return &Error{Code: BadRequest, Field: field, Text: fmt.Sprintf(format, args...)}
}

// Cancel returns an Error with code Cancelled.
func Cancel(cause error) *Error { return &Error{Code: Cancelled, Text: "cancelled", Cause: cause} }
