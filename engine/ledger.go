package engine

import (
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// Ledger keeps the memory of a process under a limit: what it had from the start, what operations map (Take and Give),
// and what the Go runtime holds, which is told to keep to the rest. Safe for concurrent use; a nil Ledger counts
// nothing.
type Ledger struct {
	mu     sync.Mutex
	limit  int64 // less what is left for overshoots
	base   int64 // program, libraries: what neither Take nor the runtime counts
	mapped int64
	told   int64 // limit that the runtime has
	shrink func()
}

// NewLedger returns a ledger of limit bytes for a process that has so many resident now. A sixteenth of the limit is
// for what the runtime takes beyond its own, which it may for a moment. shrink, if not nil, drops
// values on the Go heap that can be made again; it is called from Take, and must not call the ledger.
func NewLedger(limit, resident int64, shrink func()) *Ledger {
	l := &Ledger{limit: limit - limit/16, base: max(0, resident-held()), shrink: shrink}
	l.pace(0)
	return l
}

// Began takes into account what the process has besides when it has so many bytes resident: a library, such as the
// driver of a device, has memory of its own from its first use on. What was taken must be resident too.
func (l *Ledger) Began(resident int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base = max(l.base, resident-l.mapped-held())
	l.pace(0)
}

// held is what the Go runtime has of the system's memory.
func held() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// Take counts n bytes that are going to be mapped. Where they do not fit, garbage is collected and what can be made
// again is dropped; then the error is ErrOutOfMemory and nothing is counted.
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

// Give takes back n bytes that were taken and are not mapped any more.
func (l *Ledger) Give(n int64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mapped -= n
	l.pace(0)
}

// Spare reports whether the Go heap can have n bytes more; garbage is collected where they are not there at once.
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

// Room returns how many bytes there are for the Go heap and for what is mapped together; 0: any number.
func (l *Ledger) Room() int64 {
	if l == nil {
		return 0
	}
	return max(1, l.limit-l.base)
}

// left is what can be taken now. The lock is held.
func (l *Ledger) left() int64 { return l.limit - l.base - l.mapped - held() }

// pace tells the runtime what there is for it beside what is mapped and n bytes more, if that has changed much: telling
// it stops the world. The lock is held.
func (l *Ledger) pace(n int64) {
	heap := max(l.limit-l.base-l.mapped-n, 1)
	if d := heap - l.told; d > l.limit/64 || -d > l.limit/64 {
		debug.SetMemoryLimit(heap)
		l.told = heap
	}
}
