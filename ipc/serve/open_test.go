package serve

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestQuietWhileRequestsCome: somebody waits for the last reply while requests still come and end; the wait ends when
// none is open, and not before those that were open at its beginning are over.
func TestQuietWhileRequestsCome(t *testing.T) {
	for range 50 {
		var o open
		o.begin()
		var others sync.WaitGroup
		var ended atomic.Int64
		var last atomic.Bool
		for range 2 {
			others.Go(func() {
				for !last.Load() {
					o.begin()
					o.end()
					ended.Add(1)
				}
			})
		}
		idle := o.quiet()
		for seen := ended.Load(); ended.Load() < seen+10; {
			time.Sleep(10 * time.Microsecond)
		}
		select {
		case <-idle:
			t.Fatal("quiet while a request is open")
		default:
		}
		last.Store(true)
		o.end()
		others.Wait()
		select {
		case <-idle:
		case <-time.After(time.Minute):
			t.Fatal("no request is open, and the wait goes on")
		}
	}
}
