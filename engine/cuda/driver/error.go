//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"patchbay/engine"
)

// ErrNotOpened is wrapped by errors that say that the driver library is missing or too old.
var ErrNotOpened = errors.New("the driver library could not be opened")

// Error is a failed call of the driver, or of a library on top of it.
type Error struct {
	Call string // function of the library
	Code int    // its result
	Text string // name and description of the result
	kind C.int  // one of the PB_KIND constants
}

// Error returns "call: text (code)".
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

// Is implements errors.Is for the kinds of package engine.
func (e *Error) Is(kind error) bool {
	switch kind {
	case engine.ErrOutOfMemory:
		return e.kind == C.PB_KIND_MEMORY
	case engine.ErrDeviceLost:
		return e.Sticky()
	}
	return kind == engine.ErrDevice
}

// Sticky reports whether the context is lost: every later call fails too and the process must be restarted.
func (e *Error) Sticky() bool { return e.kind == C.PB_KIND_LOST }

// OfCapture reports whether the driver refused a graph, or a call during a capture.
func (e *Error) OfCapture() bool { return e.kind == C.PB_KIND_CAPTURE }

// OfLibrary reports whether a library on top of the driver failed.
func (e *Error) OfLibrary() bool { return e.Code >= C.PB_LIBRARY_CODES }

// Try runs f, a call of the shim of a library, and returns its error. E is pb_error of shim.h as the caller's cgo names
// it.
func Try[E any](f func(e *E)) error {
	return try(func(e *C.pb_error) { f((*E)(unsafe.Pointer(e))) })
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
	return &Error{Call: C.GoString(&e.call[0]), Code: int(e.code), Text: C.GoString(&e.text[0]), kind: e.kind}
}
