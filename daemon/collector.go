package daemon

import (
	"os"
	"runtime/debug"
	"sync"
)

// collector lets the garbage collector wait while large payloads arrive: every message of them is garbage once its
// bytes are in shared memory, and the daemon's own heap is so small that it would be collected many times within one
// payload. Between payloads the heap is kept as small as ever.
type collector struct {
	mu    sync.Mutex
	under int // payloads under way
	was   int
}

// relaxedPercent is the growth of the heap between two collections while payloads arrive. Of 64 MiB it leaves one or
// two; 100, the default, takes a fifth of the processor time of a transfer.
const relaxedPercent = 400

// relax is for the time of one payload. Whoever has set GOGC knows better.
func (c *collector) relax() (done func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.under++; c.under == 1 {
		c.was = debug.SetGCPercent(relaxedPercent)
	}
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.under--; c.under == 0 {
			debug.SetGCPercent(c.was)
		}
	})
}
