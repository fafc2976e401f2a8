package graph

import (
	"crypto/rand"
	"encoding/hex"
	"math"
	"sync"
	"time"
)

// Handle stands for a value that stays in this process, such as a MODEL, CLIP, VAE, GUIDER, SAMPLER or NOISE.
type Handle struct {
	ID      string
	Type    string    // ComfyUI's name of the type
	Expires time.Time // unless the handle is used before, which renews the lease
}

// handles holds the values that Exec has handed out, each under a lease. A value is dropped when its lease expires,
// even without another call. handles is safe for concurrent use.
type handles struct {
	mu    sync.Mutex
	lease time.Duration
	now   func() time.Time
	held  map[string]*held
	alarm *time.Timer // for the lease that ends first; nil: no leases
}

type held struct {
	value any
	lease time.Duration
	until time.Time
}

func newHandles(lease time.Duration, now func() time.Time) *handles {
	return &handles{lease: lease, now: now, held: map[string]*held{}}
}

// Hold keeps a value as Exec keeps its results and returns its handle. A lease of 0 is the runner's default.
func (h *handles) Hold(v any, lease time.Duration) Handle {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	if lease <= 0 {
		lease = h.lease
	}
	var id [12]byte
	_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
	out := Handle{ID: hex.EncodeToString(id[:]), Type: typeOf(v), Expires: h.now().Add(lease)}
	h.held[out.ID] = &held{v, lease, out.Expires}
	h.resetAlarm()
	return out
}

// Value returns the value of a handle and renews its lease; false if the handle is unknown or has expired.
func (h *handles) Value(id string) (any, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	e, ok := h.held[id]
	if !ok {
		return nil, false
	}
	e.until = h.now().Add(e.lease)
	return e.value, true
}

// FreeHandle drops a handle and reports whether it existed.
func (h *handles) FreeHandle(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	_, ok := h.held[id]
	delete(h.held, id)
	return ok
}

// FreeHandles drops all handles and returns how many there were.
func (h *handles) FreeHandles() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.held)
	clear(h.held)
	h.resetAlarm()
	return n
}

// Handles lists the handles whose leases have not expired, in no particular order.
func (h *handles) Handles() []Handle {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	var out []Handle
	for id, e := range h.held {
		out = append(out, Handle{id, typeOf(e.value), e.until})
	}
	return out
}

func (h *handles) expire() {
	now := h.now()
	for id, e := range h.held {
		if now.After(e.until) {
			delete(h.held, id)
		}
	}
}

// resetAlarm sets the alarm for the lease that ends first; if that is renewed, the alarm just sets itself again. The
// caller must hold h.mu.
func (h *handles) resetAlarm() {
	if h.alarm != nil {
		h.alarm.Stop()
		h.alarm = nil
	}
	if len(h.held) == 0 {
		return
	}
	first := time.Duration(math.MaxInt64)
	for _, e := range h.held {
		first = min(first, e.until.Sub(h.now()))
	}
	h.alarm = time.AfterFunc(max(first, 0)+time.Millisecond, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.expire()
		h.resetAlarm()
	})
}
