//go:build fakegpu

package nccl

import (
	"errors"
	"testing"
	"testing/synctest"
)

// slow is communicators whose Abort takes its time.
type slow struct {
	communicators
	begun, end chan struct{}
}

func (s slow) Abort() {
	close(s.begun)
	<-s.end
}

// TestCloseWaitsForAborts checks that Close waits for communicators that are being aborted, since the caller may close
// its devices next.
func TestCloseWaitsForAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := slow{begun: make(chan struct{}), end: make(chan struct{})}
		w := &wires{all: all}
		tr := &Transport{cached: []*wires{w}, ended: make(chan struct{})}
		go w.abort(errors.New("a rank is lost"))
		<-all.begun
		closed := make(chan error)
		go func() { closed <- tr.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("closed with %v while communicators are being aborted", err)
		default:
		}
		close(all.end)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}
