package parallel

import (
	"errors"
	"testing"
)

// TestFirstCauseOfAnAbortStays: whoever waits, or comes later, is told why the group was aborted first: what follows
// are echoes.
func TestFirstCauseOfAnAbortStays(t *testing.T) {
	first := errors.New("first")
	ends := NewLocal("test", 2, 0)
	ends[0].Abort(first)
	ends[1].Abort(errors.New("echo"))
	for name, call := range map[string]func(){
		"AllReduce": func() { ends[0].AllReduce(vec(1)) },
		"SendRecv":  func() { ends[1].SendRecv(vec(1), 0, vec(1), 0) },
		"Await":     func() { ends[1].Post(vec(1), 0); ends[1].Await(0) },
	} {
		err := Recovered(name, func() error { call(); return nil })
		var ce *CommError
		if !errors.As(err, &ce) || !errors.Is(err, first) {
			t.Errorf("%s in an aborted group: got %v, want a CommError caused by the first abort", name, err)
		}
	}
}
