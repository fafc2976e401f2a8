package message

import (
	"cmp"
	"errors"
	"runtime/debug"
	"strings"
	"syscall"

	"patchbay/fault"
	"patchbay/ipc/wire"
)

// failureCode maps a code of package node to one of the protocol. Codes that are not listed come from validation and
// become bad_workflow.
func failureCode(code string) string {
	return cmp.Or(map[string]string{
		fault.WorkflowTooLarge: wire.ErrTooLarge, fault.Cancelled: wire.ErrCancelled,
		fault.OutOfMemory: wire.ErrOutOfMemory, fault.FileMissing: wire.ErrNoModel,
		fault.TokenizerMissing: wire.ErrNoModel, fault.FileOutsideRoot: wire.ErrBadRequest,
		fault.BadCheckpoint: wire.ErrUnsupported, fault.WrongFamily: wire.ErrUnsupported,
		fault.BadImage: wire.ErrUnsupported, fault.DiskFull: wire.ErrDiskFull, fault.DeadlineExceeded: wire.ErrDeadline,
		fault.Panic: wire.ErrInternal, fault.Internal: wire.ErrInternal, fault.UnknownHandle: wire.ErrNoHandle,
		fault.UnknownClass: wire.ErrNoNodeType, fault.HostLost: wire.ErrWorkerLost,
		fault.PlanRefused: wire.ErrPlanRefused, fault.FileChanged: wire.ErrFileChanged,
	}[code], wire.ErrBadWorkflow)
}

// ErrorOf converts an error to a *wire.Error, nil to nil. A *fault.Error keeps ComfyUI's type, details and node
// errors; errors of other types become internal.
func ErrorOf(err error) *wire.Error {
	if err == nil {
		return nil
	}
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		if f == nil {
			return nil
		}
		e = wire.Errorf(failureCode(f.Code), "%s", f.Text)
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
// ran out, else internal. A *fault.Error keeps its code.
func StoreError(err error) *wire.Error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
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
