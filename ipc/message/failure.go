package message

import (
	"cmp"
	"errors"
	"runtime/debug"
	"strings"
	"syscall"

	"patchbay/ipc/wire"
	"patchbay/node/fault"
)

// failureCode maps a code of package node to one of the protocol. Codes that are not listed come from validation and
// become bad_workflow.
func failureCode(code string) string {
	return cmp.Or(map[string]string{
		fault.CodeTooLarge: wire.ErrTooLarge, fault.CodeCancelled: wire.ErrCancelled,
		fault.CodeOutOfMemory: wire.ErrOutOfMemory, fault.CodeFileMissing: wire.ErrNoModel,
		fault.CodeTokenizer: wire.ErrNoModel, fault.CodeFileOutsideRoot: wire.ErrBadRequest,
		fault.CodeBadCheckpoint: wire.ErrUnsupported, fault.CodeWrongFamily: wire.ErrUnsupported,
		fault.CodeBadImage: wire.ErrUnsupported, fault.CodeDiskFull: wire.ErrDiskFull, fault.CodeDeadline: wire.ErrDeadline,
		fault.CodePanic: wire.ErrInternal, fault.CodeInternal: wire.ErrInternal, fault.CodeUnknownHandle: wire.ErrNoHandle,
		fault.CodeUnknownClass: wire.ErrNoNodeType, fault.CodeHostLost: wire.ErrWorkerLost,
		fault.CodePlanRefused: wire.ErrPlanRefused, fault.CodeFileChanged: wire.ErrFileChanged,
	}[code], wire.ErrBadWorkflow)
}

// ErrorOf converts an error to a *wire.Error, nil to nil. A *fault.Failure keeps ComfyUI's type, details and node
// errors; errors of other types become internal.
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

// StoreError returns the error for an output that could not be written: disk_full if space or the limit on file size
// ran out, else internal. A *fault.Failure keeps its code.
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
