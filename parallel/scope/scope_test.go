package scope

import (
	"errors"
	"strings"
	"testing"

	"patchbay/fault"
)

func TestScopeTurnsPanicIntoErrorAndAborts(t *testing.T) {
	stop := make(chan struct{})
	var cause error
	g := New(func(err error) { cause = err; close(stop) })
	g.Go("rank 1", func() error { <-stop; return nil })
	g.Go("rank 2", func() error { panic("boom") })
	err := g.Wait()
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != fault.Panic || !strings.Contains(e.Text, "rank 2") ||
		!strings.Contains(e.Stack, "scope_test.go") {
		t.Fatalf("Wait = %#v, want a panic of rank 2 with its stack", err)
	}
	if !errors.Is(cause, err) {
		t.Fatalf("abort got %v, Wait %v", cause, err)
	}
}
