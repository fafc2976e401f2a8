package comm

import (
	"errors"
	"testing"

	"patchbay/engine"
)

// TestFirstCauseOfAnAbortStays: whoever waits, or comes later, is told why the group was aborted first: what follows
// are echoes.
func TestFirstCauseOfAnAbortStays(t *testing.T) {
	first := errors.New("first")
	ends, err := Local{}.Connect(Group{Name: "test"}, make([]engine.Ops, 2))
	if err != nil {
		t.Fatal(err)
	}
	ends[0].Abort(first)
	ends[1].Abort(errors.New("echo"))
	for name, call := range map[string]func(){
		"AllReduce": func() { ends[0].AllReduce(vec(1)) },
		"SendRecv":  func() { ends[1].SendRecv(vec(1), 0, vec(1), 0) },
		"Await":     func() { ends[1].Post(vec(1), 0); ends[1].Await(vec(1), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				err, _ := recover().(error)
				var ce *Error
				if !errors.As(err, &ce) || !errors.Is(err, first) {
					t.Errorf("in an aborted group: got %v, want an Error caused by the first abort", err)
				}
			}()
			call()
		})
	}
}
