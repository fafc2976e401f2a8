package register

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// heartbeat is the value of a machine's key. Versions before it wrote the time alone, and read none.
type heartbeat struct {
	at      time.Time
	process string // a nonce: two processes of one name have two
	since   uint64 // the revision of the process's first heartbeat; 0 in that one
}

func (h heartbeat) text() []byte {
	return fmt.Appendf(nil, "%s %s %d", h.at.UTC().Format(time.RFC3339), h.process, h.since)
}

// parseHeartbeat reads a heartbeat. What cannot be read has no process.
func parseHeartbeat(text []byte) (h heartbeat) {
	if words := strings.Fields(string(text)); len(words) == 3 {
		h.at, _ = time.Parse(time.RFC3339, words[0])
		h.process = words[1]
		h.since, _ = strconv.ParseUint(words[2], 10, 64)
	}
	return h
}

// rivals is what a machine knows of other processes that use its name, as the copy of a store folder does. Guarded by
// the register's mutex, but for met.
type rivals struct {
	process string        // of this process
	since   uint64        // the revision of our first heartbeat; 0: not written yet
	earlier time.Time     // when, by the server's clock, another process had written the heartbeat found at the start
	met     chan struct{} // closed when a process that began earlier beats
	told    string        // the process that was last told that we are here
}

func newRivals() rivals { return rivals{process: wire.NewID(), met: make(chan struct{})} }

func (v *rivals) there() bool {
	select {
	case <-v.met:
		return true
	default:
		return false
	}
}

// heartbeat returns our next one.
func (r *Register) heartbeat() heartbeat {
	r.mu.Lock()
	defer r.mu.Unlock()
	return heartbeat{time.Now(), r.rivals.process, r.rivals.since}
}

// began notes the revision of our first heartbeat in the bucket. A bucket that is made anew counts from 1 again.
func (r *Register) began(revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rivals.since == 0 || revision < r.rivals.since {
		r.rivals.since = revision
	}
}

// isOurs reports whether a heartbeat under our name is from this process. One from another process is noted: of two,
// the one that began later is the rival and has to end. A newcomer is told at once that we are here: our next heartbeat
// may be late, since a busy machine delays what waits for a clock. The caller must hold r.mu.
func (r *Register) isOurs(e *wire.Update) bool {
	v, h := &r.rivals, parseHeartbeat(e.Value)
	switch {
	case h.process == "" || h.process == v.process:
		return true
	case !r.complete():
		v.earlier = e.Created
	case h.since > 0 && (v.since == 0 || h.since < v.since) && !v.there():
		close(v.met)
	case v.since > 0 && v.told != h.process && !v.there():
		v.told = h.process
		r.wg.Go(func() { _ = r.show(r.ctx) }) // the next heartbeat does it again
	}
	return false
}

// show writes a heartbeat out of turn.
func (r *Register) show(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, BeatEvery)
	defer cancel()
	_, err := r.bucket.Put(ctx, r.cfg.Name, r.heartbeat().text())
	return err
}

// complete reports whether what was in the bucket when the watch started has been read.
func (r *Register) complete() bool {
	select {
	case <-r.known:
		return true
	default:
		return false
	}
}

// Rival returns a channel that is closed when another process turns out to use the name of this machine, and to have
// begun earlier.
func (r *Register) Rival() <-chan struct{} { return r.rivals.met }

// answerWithin is how long a living process may take to answer a newcomer of its name.
const answerWithin = 2 * time.Second

// Alone waits until no other process can be using the name of this machine: at once if none has left a heartbeat within
// DeadAfter, and otherwise until the next one would have come, and until one that is there would have answered. It
// returns an error if one has come, or when ctx is done.
func (r *Register) Alone(ctx context.Context) error {
	select {
	case <-r.known:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	earlier := r.rivals.earlier
	r.mu.Unlock()
	if earlier.IsZero() {
		return nil
	}
	s, err := wire.Insist(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return r.js.Stream(ctx, "KV_"+message.MachineBucket)
	})
	if err != nil {
		return err
	}
	age := s.CachedInfo().TimeStamp.Sub(earlier) // both by the server's clock
	if age > DeadAfter {
		return nil
	}
	if err := r.show(ctx); err != nil {
		return err
	}
	select {
	case <-r.rivals.met:
		return RivalError(r.cfg.Name)
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(max(BeatEvery+time.Second-age, answerWithin)):
		return nil
	}
}

// RivalError says that a daemon's name is in use.
func RivalError(name string) error {
	return fmt.Errorf("another process serves under the name of this daemon, %s: one store folder is a copy of the "+
		"other. Give this daemon an empty --store, or delete the file daemon-name in its store", name)
}
