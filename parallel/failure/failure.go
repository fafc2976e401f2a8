// Package failure is how sampling says that it will not or could not run: one error with a code, the field it is about,
// and words for people. It knows no request, no plan and no device. Everything in package parallel and below it that
// refuses returns it; callers above tell by Code what to do.
package failure

import "fmt"

// Code classifies an Error for clients.
type Code string

// The codes. BadRequest names a field of parallel.Request; PlanRefused a plan that cannot run; OutOfMemory comes before
// work starts and says how much was needed; Cancelled is the caller's own wish; Panic is a bug inside a rank, a sampler
// or a kernel.
const (
	BadRequest  Code = "bad_request"
	PlanRefused Code = "plan_refused"
	OutOfMemory Code = "out_of_memory"
	Cancelled   Code = "cancelled"
	Panic       Code = "internal_panic"
	LoadFailed  Code = "bad_checkpoint"
	HostLost    Code = "host_lost"   // a process of ranks has gone, or did not start; the request may be run again
	PeerLost    Code = "rank_lost"   // a rank did not come to an exchange, or came with another one
	DeviceLost  Code = "device_lost" // nothing runs on a device any more until the process is started again
)

// Error is what every door of package parallel returns when it refuses or fails.
type Error struct {
	Code  Code
	Field string // field of Request the error is about, may be empty
	Text  string // tells what is wrong and what is allowed
	Cause error  // may be nil
	Stack string // of a panic
}

// Error returns "field: text: cause".
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

// Refuse is the Error of a request that cannot run as it is given.
func Refuse(field, format string, args ...any) *Error {
	return &Error{Code: BadRequest, Field: field, Text: fmt.Sprintf(format, args...)}
}
