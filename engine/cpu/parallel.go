//go:build cgo

package cpu

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// TaskPanic is the panic value of a call when one of its goroutines has panicked: the value and the stack of that
// goroutine. A call that runs on its caller's goroutine alone panics with the plain value.
type TaskPanic struct {
	Value any
	Stack []byte
}

func (p *TaskPanic) Error() string { return fmt.Sprintf("%v\n%s", p.Value, p.Stack) }

// Unwrap returns the value where it is an error.
func (p *TaskPanic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// tasks is the work of one call: a counter that the workers draw from.
type tasks struct {
	next   atomic.Int64
	n      int
	do     func(worker, task int)
	wg     sync.WaitGroup
	failed atomic.Pointer[TaskPanic]
}

// each calls do for every task 0..n-1 on at most workers goroutines, the caller being one of them, and returns when all
// have ended. do gets the number of its worker, so that scratch memory needs no lock.
func each(workers, n int, do func(worker, task int)) {
	workers = min(workers, n)
	if workers <= 1 {
		for i := range n {
			do(0, i)
		}
		return
	}
	t := &tasks{n: n, do: do}
	t.wg.Add(workers - 1)
	for w := 1; w < workers; w++ {
		go t.spawned(w)
	}
	t.guarded(0)
	t.wg.Wait()
	if p := t.failed.Load(); p != nil {
		panic(p)
	}
}

func (t *tasks) spawned(worker int) {
	defer t.wg.Done()
	t.guarded(worker)
}

// guarded draws tasks until none is left or one has panicked.
func (t *tasks) guarded(worker int) {
	defer func() {
		if v := recover(); v != nil {
			t.failed.CompareAndSwap(nil, &TaskPanic{Value: v, Stack: debug.Stack()})
		}
	}()
	for t.failed.Load() == nil {
		i := int(t.next.Add(1)) - 1
		if i >= t.n {
			return
		}
		t.do(worker, i)
	}
}
