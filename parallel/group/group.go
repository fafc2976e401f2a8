// Package group runs goroutines that live and die together (group.go) and, for tests, one at a time in an order that
// can be repeated (scheduler.go). It turns panics into errors; it knows neither ranks nor samplers, nor what they do.
package group

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/failure"
)

// Group runs goroutines that live and die together. Every goroutine of package parallel is started by Go: a panic in
// one (a rank, a sampler, a kernel) becomes an error, the first error aborts the others, and Wait returns it. The
// process never dies of a job.
type Group struct {
	wg    sync.WaitGroup
	once  sync.Once
	abort func(cause error)
	cause error
}

// New makes a Group; abort is called once with the first error and must make the other goroutines return.
func New(abort func(cause error)) *Group { return &Group{abort: abort} }

// Go starts f; where names it in the error of a panic ("rank 3", "sampler euler").
func (g *Group) Go(where string, f func() error) {
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

// Every starts calling f again and again, until ended is closed.
func (g *Group) Every(where string, period time.Duration, ended <-chan struct{}, f func()) {
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

// Wait blocks until all goroutines have returned and gives the first error.
func (g *Group) Wait() error {
	g.wg.Wait()
	return g.cause
}

// Recovered calls f and turns a panic into an *Error that carries the stack. It is the one place where panics of engine
// and models end.
func Recovered(where string, f func() error) (err error) {
	defer func() {
		v := recover()
		if lost, ok := v.(*comm.Error); ok {
			err = lost // the fault is another rank's, whose own error tells more
			return
		}
		if v != nil {
			e := &failure.Error{
				Code: failure.Panic, Text: fmt.Sprintf("panic in %s: %v", where, v),
				Stack: string(debug.Stack()),
			}
			if cause, ok := v.(error); ok {
				e.Text, e.Cause = "panic in "+where, cause
			}
			err = e
		}
	}()
	return f()
}

// AsError makes an Error of any error: what devices report by its kind, a lost peer of an error of the exchanges, a
// refusal of the others.
func AsError(err error) *failure.Error {
	var e *failure.Error
	known := errors.As(err, &e)
	switch {
	case known && e.Code == failure.DeviceLost:
		return e
	case errors.Is(err, engine.ErrDeviceLost):
		return &failure.Error{Code: failure.DeviceLost, Text: "a device failed: start the process again", Cause: err}
	case errors.Is(err, engine.ErrOutOfMemory) && (!known || e.Code != failure.OutOfMemory):
		return &failure.Error{Code: failure.OutOfMemory, Text: "a device is full", Cause: err}
	case known:
		return e
	case errors.Is(err, engine.ErrDevice):
		return &failure.Error{Code: failure.Panic, Text: "a device was used wrongly", Cause: err}
	}
	if ce := (*comm.Error)(nil); errors.As(err, &ce) {
		return &failure.Error{Code: failure.PeerLost, Text: err.Error()}
	}
	return &failure.Error{Code: failure.BadRequest, Text: err.Error()}
}
