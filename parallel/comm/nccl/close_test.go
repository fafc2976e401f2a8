package nccl

import (
	"errors"
	"testing"
	"time"
)

// slow are communicators that take their time to end.
type slow struct {
	communicators
	begun, end chan struct{}
}

func (s slow) Abort() {
	close(s.begun)
	<-s.end
}

// TestCloseWaitsForAborts: whoever closes a transport may close its devices next, so communicators that are being
// aborted have to be gone by then.
func TestCloseWaitsForAborts(t *testing.T) {
	all := slow{begun: make(chan struct{}), end: make(chan struct{})}
	w := &wires{all: all}
	tr := &Transport{kept: []*wires{w}, ended: make(chan struct{})}
	go w.abort(errors.New("a rank is lost"))
	<-all.begun
	closed := make(chan error)
	go func() { closed <- tr.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("closed with %v while communicators are being aborted", err)
	case <-time.After(50 * time.Millisecond): // a closer that does not wait needs microseconds
	}
	close(all.end)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
