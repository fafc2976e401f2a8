package parallel

import (
	"fmt"
	"runtime/debug"
	"sync"

	"patchbay/parallel/comm"
	"patchbay/parallel/failure"
)

// Group runs goroutines that live and die together. Every goroutine of this package is started by Go: a panic in one (a rank, a sampler,
// a kernel) becomes an error, the first error aborts the others, and Wait returns it. The process never dies of a job.
type Group struct {
	wg    sync.WaitGroup
	once  sync.Once
	abort func(cause error)
	cause error
}

// NewGroup makes a Group; abort is called once with the first error and must make the other goroutines return.
func NewGroup(abort func(cause error)) *Group { return &Group{abort: abort} }

// Go starts f; where names it in the error of a panic ("rank 3", "sampler euler").
func (g *Group) Go(where string, f func() error) {
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		if err := Recovered(where, f); err != nil {
			g.once.Do(func() {
				g.cause = err
				if g.abort != nil {
					g.abort(err)
				}
			})
		}
	}()
}

// Wait blocks until all goroutines have returned and gives the first error.
func (g *Group) Wait() error {
	g.wg.Wait()
	return g.cause
}

// Recovered calls f and turns a panic into an *Error that carries the stack. It is the one place where panics of engine and models end.
func Recovered(where string, f func() error) (err error) {
	defer func() {
		v := recover()
		if lost, ok := v.(*comm.Error); ok {
			err = lost // the fault is another rank's, whose own error tells more
			return
		}
		if v != nil {
			e := &failure.Error{Code: failure.Panic, Text: fmt.Sprintf("panic in %s: %v", where, v), Stack: string(debug.Stack())}
			if cause, ok := v.(error); ok {
				e.Text, e.Cause = "panic in "+where, cause
			}
			err = e
		}
	}()
	return f()
}
