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

// failureCode maps the codes of package node that are not validation; everything else there is bad_workflow.
func failureCode(code string) string {
	return cmp.Or(map[string]string{
		fault.CodeTooLarge: wire.ErrTooLarge, fault.CodeCancelled: wire.ErrCancelled,
		fault.CodeOutOfMemory: wire.ErrOutOfMemory, fault.CodeFileMissing: wire.ErrNoModel,
		fault.CodeTokenizer: wire.ErrNoModel, fault.CodeFileOutsideRoot: wire.ErrBadRequest,
		fault.CodeBadCheckpoint: wire.ErrUnsupported, fault.CodeWrongFamily: wire.ErrUnsupported,
		fault.CodeBadImage: wire.ErrUnsupported, fault.CodeDiskFull: wire.ErrDiskFull, fault.CodeDeadline: wire.ErrDeadline,
		fault.CodePanic: wire.ErrInternal, fault.CodeInternal: wire.ErrInternal, fault.CodeUnknownHandle: wire.ErrNoHandle,
		fault.CodeUnknownClass: wire.ErrNoNodeType, fault.CodeHostLost: wire.ErrWorkerLost,
		fault.CodePlanRefused: wire.ErrPlanRefused,
	}[code], wire.ErrBadWorkflow)
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
