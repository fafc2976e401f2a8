package message

import (
	"errors"
	"fmt"
	"runtime/debug"

	"patchbay/fault"
)

// Guarded runs f and turns a panic into an error with its stack.
func Guarded[T any](f func() (T, error)) (out T, err error) {
	defer func() {
		if p := recover(); p != nil {
			e := fault.New(fault.Panic, "panic: %v", p)
			e.Stack = string(debug.Stack())
			err = e
		}
	}()
	return f()
}

// StoreError returns the error for an output that could not be written: disk_full if space or the limit on file size
// ran out, else internal. A *fault.Error keeps its code and text.
func StoreError(err error) *fault.Error {
	if known, ok := errors.AsType[*fault.Error](err); ok {
		return known
	}
	return fault.From(fmt.Errorf("write output: %w", err))
}
