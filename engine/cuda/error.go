//go:build cgo

package cuda

/*
#include "dnn.h"
#include "lt.h"
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"patchbay/engine"
)

// ErrNotOpened is in the chain of an error that says that the driver's library is missing or too old.
var ErrNotOpened = errors.New("the driver library could not be opened")

// Error is a failed call of the driver, of cuBLASLt or of cuDNN.
type Error struct {
	Call string // function of the library
	Code int    // its result
	Text string // name and description of the result
}

// Error returns "call: text (code)".
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

// Is implements errors.Is for the kinds of package engine.
func (e *Error) Is(kind error) bool {
	switch kind {
	case engine.ErrOutOfMemory:
		return e.Code == C.PB_OUT_OF_MEMORY || e.Code == C.PB_LT_CODES+C.PB_LT_ALLOC_FAILED ||
			e.Code == C.PB_DNN_CODES+C.PB_DNN_NO_DEVICE_MEMORY
	case engine.ErrDeviceLost:
		return e.Sticky()
	}
	return kind == engine.ErrDevice
}

// Sticky reports whether the context is lost: every later call fails too and the process must be started again.
func (e *Error) Sticky() bool {
	switch e.Code {
	case C.PB_SUCCESS, C.PB_INVALID_VALUE, C.PB_OUT_OF_MEMORY, C.PB_NO_DEVICE, C.PB_INVALID_DEVICE, C.PB_INVALID_HANDLE,
		C.PB_NOT_FOUND, C.PB_NOT_READY, C.PB_INVALID_IMAGE, C.PB_INVALID_PTX, C.PB_UNSUPPORTED_PTX, C.PB_OUT_OF_RESOURCES,
		C.PB_PEER_UNSUPPORTED, C.PB_PEER_ENABLED, C.PB_TOO_MANY_PEERS, C.PB_LT_CODES + C.PB_LT_NOT_INITIALIZED,
		C.PB_LT_CODES + C.PB_LT_ALLOC_FAILED, C.PB_LT_CODES + C.PB_LT_INVALID_VALUE, C.PB_LT_CODES + C.PB_LT_ARCH_MISMATCH,
		C.PB_LT_CODES + C.PB_LT_NOT_SUPPORTED:
		return false
	}
	if e.Code >= C.PB_DNN_CODES && e.Code < C.PB_DNN_CODES+C.PB_DNN_EXECUTION_FAILED {
		return false
	}
	return !e.capture()
}

// capture reports whether the driver refused a graph, or something while one was captured.
func (e *Error) capture() bool {
	return e.Code >= C.PB_CAPTURE_UNSUPPORTED && e.Code <= C.PB_GRAPH_UPDATE_FAILURE
}

// try runs a call of the shim and returns its error.
func try(f func(e *C.pb_error)) error {
	var e C.pb_error
	f(&e)
	return errorOf(&e)
}

// errorOf returns what e holds, nil for success.
func errorOf(e *C.pb_error) error {
	switch {
	case e.code == 0:
		return nil
	case e.code < 0:
		return fmt.Errorf("%w: %s", ErrNotOpened, C.GoString(&e.text[0]))
	}
	return &Error{Call: C.GoString(&e.call[0]), Code: int(e.code), Text: C.GoString(&e.text[0])}
}
