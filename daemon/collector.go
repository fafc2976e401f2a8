package daemon

import (
	"os"
	"runtime/debug"
	"sync"
)

// collector makes the garbage collector run less often while large payloads arrive: each of their messages is garbage
// once its bytes are in shared memory, and the daemon's own heap is so small that one payload would cause many
// collections. Between payloads the heap stays as small as ever.
type collector struct {
	mu    sync.Mutex
	under int // payloads under way
	was   int
}

// relaxedPercent is the GOGC value while payloads arrive. It causes one or two collections in 64 MiB; with 100, the
// default, collections take a fifth of the processor time of a transfer.
const relaxedPercent = 400

// relax raises GOGC for one payload, until done is called. A GOGC in the environment is left alone.
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
