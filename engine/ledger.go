package engine

import (
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// Ledger keeps the memory of a process under a limit. It adds up what the process had at its start, what is mapped
// (Take and Give) and what the Go runtime holds, and gives the remainder to the runtime as its memory limit. It is safe
// for concurrent use. Take, Give, Spare and Room may be called on a nil Ledger, which counts nothing.
type Ledger struct {
	mu      sync.Mutex
	limit   int64 // minus the reserve for overshoots of the runtime
	base    int64 // program and libraries: what neither Take nor the runtime counts
	mapped  int64
	applied int64 // the last memory limit given to the runtime
	shrink  func()
}

// NewLedger returns a ledger of limit bytes for a process with resident bytes resident now. A sixteenth of the limit is
// kept in reserve, because the runtime may briefly exceed its own limit. shrink, if not nil, drops values on the Go
// heap that can be recreated. Take calls it with the ledger locked, so it must not call the ledger.
func NewLedger(limit, resident int64, shrink func()) *Ledger {
	l := &Ledger{limit: limit - limit/16, base: max(0, resident-held()), shrink: shrink}
	l.pace(0)
	return l
}

// Rebase updates the ledger after a library, such as a GPU driver, has taken memory of its own on first use. resident
// is what the process has resident now, in bytes. All memory counted by Take must be resident by then.
func (l *Ledger) Rebase(resident int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base = max(l.base, resident-l.mapped-held())
	l.pace(0)
}

// held returns the bytes of the system's memory that the Go runtime holds.
func held() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// Take counts n bytes that are about to be mapped. If they do not fit, it collects garbage and calls shrink. If they
// still do not fit, it counts nothing and returns an error that is ErrOutOfMemory.
func (l *Ledger) Take(n int64) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left() < n {
		l.pace(n)
		debug.FreeOSMemory()
		if l.left() < n && l.shrink != nil {
			l.shrink()
			debug.FreeOSMemory()
		}
		if left := l.left(); left < n {
			l.pace(0)
			return fmt.Errorf("%w: %d MB more, %d MB of %d MB are left (--memory)", ErrOutOfMemory, n>>20,
				max(0, left)>>20, l.limit>>20)
		}
	}
	l.mapped += n
	l.pace(0)
	return nil
}

// Give returns n bytes of Take that are no longer mapped.
func (l *Ledger) Give(n int64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mapped -= n
	l.pace(0)
}

// Spare reports whether the Go heap may grow by n bytes. It collects garbage first if they are not available at once.
func (l *Ledger) Spare(n int64) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left() < n {
		debug.FreeOSMemory()
	}
	return l.left() >= n
}

// Room returns the bytes available to the Go heap and to mapped memory together; 0 means any number.
func (l *Ledger) Room() int64 {
	if l == nil {
		return 0
	}
	return max(1, l.limit-l.base)
}

// left returns what can be taken now. The caller must hold l.mu.
func (l *Ledger) left() int64 { return l.limit - l.base - l.mapped - held() }

// pace sets the runtime's memory limit to what mapped memory and n more bytes leave. It skips small changes, because
// setting the limit stops the world. The caller must hold l.mu.
func (l *Ledger) pace(n int64) {
	heap := max(l.limit-l.base-l.mapped-n, 1)
	if d := heap - l.applied; d > l.limit/64 || -d > l.limit/64 {
		debug.SetMemoryLimit(heap)
		l.applied = heap
	}
}
