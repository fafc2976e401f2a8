// Package bubble runs tests in simulated time: a NATS server, its clients and what lies between them are in one bubble
// of testing/synctest. There computing and files take no time, so that no deadline passes because a machine is slow,
// and waiting costs nothing. Only tests import it.
package bubble

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// Run calls f in a bubble, at the time of the outside. All goroutines that f starts must end with the test, and no lock
// may be held while something waits for time to pass: waiting for a lock stops the clock of a bubble (golang/go issue
// 77687). Nothing outside may use nats.go meanwhile, so a test that calls Run is not parallel.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	ats.Register() // the ticker of nats-server's clock must be made outside of the bubble, or that clock stands still
	defer ats.Unregister()
	// nats.go keeps timers in a pool, and one that was made in a bubble cannot be used in the next: two collections empty
	// a sync.Pool. Deferred, since a test that fails does not return
	defer runtime.GC()
	defer runtime.GC()
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now))                   // nats-server expires messages by the clock outside of the bubble
		t.Cleanup(func() { time.Sleep(time.Minute) }) // after all others: goroutines that are to end end in that time
		f(t)
	})
}

// Part runs f in a bubble as a subtest.
func Part(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { Run(t, f) })
}
