// Package scope runs goroutines that live and die together (scope.go) and, for tests, schedules them one at a time in a
// reproducible order (scheduler.go). It turns panics into errors. It does not know what the goroutines do.
package scope

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/parallel/comm"
)

// Scope runs goroutines that live and die together. Package parallel starts every goroutine with Go, so that a panic in
// one (a rank, a sampler, a kernel) becomes an error. The first error aborts the others, and Wait returns it. A panic
// in a job therefore does not end the process.
type Scope struct {
	wg    sync.WaitGroup
	once  sync.Once
	abort func(cause error)
	cause error
}

// New returns a Scope. abort may be nil; it is called once with the first error and must make the others return.
func New(abort func(cause error)) *Scope { return &Scope{abort: abort} }

// Go starts f. where names f in the error of a panic ("rank 3", "sampler euler").
func (g *Scope) Go(where string, f func() error) {
	g.wg.Go(func() {
		if err := Recovered(where, f); err != nil {
			g.once.Do(func() {
				g.cause = err
				if g.abort != nil {
					g.abort(err)
				}
			})
		}
	})
}

// Every starts a goroutine that calls f once per period until ended is closed.
func (g *Scope) Every(where string, period time.Duration, ended <-chan struct{}, f func()) {
	g.Go(where, func() error {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return nil
			case <-tick.C:
				f()
			}
		}
	})
}

// Wait blocks until all goroutines have returned and returns the first error.
func (g *Scope) Wait() error {
	g.wg.Wait()
	return g.cause
}

// Recovered calls f and turns a panic into a *fault.Error with the stack, or returns the *comm.Error that f panicked
// with. Package parallel recovers the panics of engine and models nowhere else.
func Recovered(where string, f func() error) (err error) {
	defer func() {
		v := recover()
		if lost, ok := v.(*comm.Error); ok {
			err = lost // the fault is another rank's, whose own error says more
			return
		}
		if v != nil {
			e := fault.New(fault.Panic, "panic in %s: %v", where, v)
			e.Cause, _ = v.(error)
			e.Stack = string(debug.Stack())
			err = e
		}
	}()
	return f()
}

// AsError converts any error to a *fault.Error: a device error by its kind, a *comm.Error to PeerLost, other errors
// to BadRequest. A *fault.Error in the chain is returned as it is unless the device error that it wraps says more.
func AsError(err error) *fault.Error {
	var e *fault.Error
	known := errors.As(err, &e)
	switch {
	case known && e.Code == fault.DeviceLost:
		return e
	case errors.Is(err, engine.ErrDeviceLost):
		return fault.Wrap(fault.DeviceLost, "", fmt.Errorf("a device failed: start the process again: %w", err))
	case errors.Is(err, engine.ErrOutOfMemory) && (!known || e.Code != fault.OutOfMemory):
		field := ""
		if known {
			field = e.Field
		}
		return fault.Wrap(fault.OutOfMemory, field, fmt.Errorf("memory is full: %w", err))
	case known:
		return e
	case errors.Is(err, engine.ErrDevice):
		return fault.Wrap(fault.Panic, "", fmt.Errorf("a device was used wrongly: %w", err))
	}
	if ce := (*comm.Error)(nil); errors.As(err, &ce) {
		return fault.New(fault.PeerLost, "%v", err)
	}
	return fault.New(fault.BadInput, "%v", err)
}
