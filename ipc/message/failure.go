package message

import (
	"errors"
	"runtime/debug"
	"strings"
	"syscall"

	"patchbay/ipc/wire"
	"patchbay/node/fault"
)

// failureCode maps the codes of package node that are not validation; everything else there is bad_workflow.
func failureCode(code string) string {
	switch code {
	case fault.CodeTooLarge:
		return wire.ErrTooLarge
	case fault.CodeCancelled:
		return wire.ErrCancelled
	case fault.CodeOutOfMemory:
		return wire.ErrOutOfMemory
	case fault.CodeFileMissing, fault.CodeTokenizer:
		return wire.ErrNoModel
	case fault.CodeFileOutsideRoot:
		return wire.ErrBadRequest
	case fault.CodeBadCheckpoint, fault.CodeWrongFamily, fault.CodeBadImage:
		return wire.ErrUnsupported
	case fault.CodeDiskFull:
		return wire.ErrDiskFull
	case fault.CodeDeadline:
		return wire.ErrDeadline
	case fault.CodePanic, fault.CodeInternal:
		return wire.ErrInternal
	case fault.CodeUnknownHandle:
		return wire.ErrNoHandle
	case fault.CodeUnknownClass:
		return wire.ErrNoNodeType
	case fault.CodeHostLost:
		return wire.ErrWorkerLost
	case fault.CodePlanRefused:
		return wire.ErrPlanRefused
	}
	return wire.ErrBadWorkflow
}

// ErrorOf turns any error into an Error; a Failure keeps ComfyUI's type, details and node errors.
func ErrorOf(err error) *wire.Error {
	if err == nil {
		return nil
	}
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	if f, ok := errors.AsType[*fault.Failure](err); ok {
		if f == nil {
			return nil
		}
		e = wire.Errorf(failureCode(f.Code), "%s", f.Message)
		e.Type, e.Details, e.Node, e.Class, e.Input = f.Code, f.Details, f.Node, f.Class, f.Field
		e.Extra, e.NodeErrors, e.Trace = f.Extra, f.NodeErrors, f.Trace
		return e
	}
	return wire.Errorf(wire.ErrInternal, "%s", err.Error())
}

// Guarded runs f and turns a panic into an error with its stack.
func Guarded[T any](f func() (T, error)) (out T, err error) {
	defer func() {
		if p := recover(); p != nil {
			e := wire.Errorf(wire.ErrInternal, "panic: %v", p)
			e.Type, e.Trace = "internal_panic", strings.Split(strings.TrimSpace(string(debug.Stack())), "\n")
			err = e
		}
	}()
	return f()
}

// StoreError tells a full disk from other faults of writing.
func StoreError(err error) *wire.Error {
	if _, ok := errors.AsType[*fault.Failure](err); ok {
		return ErrorOf(err)
	}
	code := wire.ErrInternal
	for _, full := range []error{syscall.ENOSPC, syscall.EFBIG, syscall.EDQUOT} {
		if errors.Is(err, full) {
			code = wire.ErrDiskFull
		}
	}
	return wire.Errorf(code, "write output: %v", err)
}
