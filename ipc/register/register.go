// Package register is where machines find each other: daemons that share a queue, and hosts that have joined a cluster.
// Each keeps a heartbeat alive in a bucket of a NATS server, and beside it a note of what it has. Who may use a machine
// is settled among the machines themselves.
//
// Reading order: register, machine, heartbeat, rival, join.
package register

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// The times of heartbeats.
const (
	BeatEvery = 3 * time.Second
	DeadAfter = 12 * time.Second      // a machine without a heartbeat for this long is gone
	silence   = DeadAfter - BeatEvery // a longer gap between our own heartbeats: this process was suspended
)

// Config is how a machine uses the register.
type Config struct {
	Name     string         // of this machine: a daemon's, which has no dot, a HostName or a LeaderName
	Note     func() Machine // what this machine has; nil: no note
	Replicas int            // of the bucket; 0: as many as it has, and 1 in a new one
	Log      zerolog.Logger
}

// Register knows the machines of a bucket. It is safe for concurrent use.
type Register struct {
	cfg    Config
	js     jetstream.JetStream
	bucket jetstream.KeyValue
	watch  *wire.Watch
	known  chan struct{} // closed when what was in the bucket has been read
	ctx    context.Context
	end    context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	heard  map[string]time.Time // last heartbeat of every machine, by our clock
	notes  map[string]Machine
	steady time.Time // since when our own heartbeats have got through; zero: they do not
	beaten time.Time // when the last of ours got through

	// What Beat, which one goroutine calls, has written.
	note          []byte
	looked, noted time.Time

	rivals rivals
}

// Open creates the bucket, if it is not there, and follows it until Close. ctx bounds the call.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Register, error) {
	r := &Register{
		cfg: cfg, js: js, watch: wire.NewWatch(), known: make(chan struct{}), heard: map[string]time.Time{},
		notes: map[string]Machine{}, rivals: newRivals(),
	}
	var err error
	if r.bucket, err = r.create(ctx); err != nil {
		return nil, err
	}
	r.ctx, r.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := r.watch.Start(ctx, r.ctx, r.js.Conn(), message.MachineBucket, r.wg.Go, r.take); err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}

// create returns the bucket, which it creates if it is not there.
func (r *Register) create(ctx context.Context) (jetstream.KeyValue, error) {
	if r.cfg.Replicas == 0 {
		bucket, err := wire.Insist(ctx, func(ctx context.Context) (jetstream.KeyValue, error) {
			return r.js.KeyValue(ctx, message.MachineBucket)
		})
		if err == nil {
			return bucket, nil
		}
	}
	return wire.Insist(ctx, func(ctx context.Context) (jetstream.KeyValue, error) {
		return r.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
			// on disk: in memory it would not outlive the server
			Bucket: message.MachineBucket, Description: "heartbeats and notes of daemons and hosts",
			TTL: 10 * DeadAfter, Replicas: r.cfg.Replicas,
		})
	})
}

// Close ends what the register has started, and removes the entry of this machine unless a rival uses it. No Beat may
// follow.
func (r *Register) Close() {
	r.end()
	r.wg.Wait()
	if !r.js.Conn().IsConnected() || r.rivals.there() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if r.bucket.Delete(ctx, r.cfg.Name) == nil {
		_ = r.bucket.Delete(ctx, r.cfg.Name+noteSuffix)
	}
}

// take takes in an entry of the bucket.
func (r *Register) take(e *wire.Update) {
	if e == nil {
		if !r.complete() {
			close(r.known)
		}
		return
	}
	name, isNote := strings.CutSuffix(e.Key, noteSuffix)
	var m Machine
	if isNote && !e.Gone {
		if err := wire.Read(e.Value, wire.JSON, wire.DefaultLimits(), &m); err != nil {
			r.cfg.Log.Warn().Err(err).Str("machine", name).Msg("its list of files cannot be read")
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.Gone:
		delete(r.heard, name)
		delete(r.notes, name)
	case isNote:
		r.notes[name] = m
	case name == r.cfg.Name && !r.isOurs(e):
	default:
		r.heard[name] = time.Now()
	}
}

// Alive reports whether a machine shows signs of life. All count as alive while our own heartbeats do not get through
// or do not come back to us, or have done so only for a short while: neither an outage of the server nor a suspension
// of this process, during which it received no heartbeats, may make jobs change hands or empty a list of hosts.
func (r *Register) Alive(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alive(name)
}

// alive is Alive. The caller must hold r.mu.
func (r *Register) alive(name string) bool {
	if name == r.cfg.Name || r.steady.IsZero() || time.Since(r.steady) < DeadAfter || time.Since(r.beaten) > silence ||
		time.Since(r.heard[r.cfg.Name]) > silence {
		return true
	}
	return time.Since(r.heard[name]) < DeadAfter
}

// Heard reports whether a machine has shown signs of life after the given time.
func (r *Register) Heard(name string, since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard[name].After(since)
}

// Daemons returns the notes of the other daemons that are alive, by name.
func (r *Register) Daemons() map[string]Machine {
	return r.others(func(name string) bool { return !strings.Contains(name, ".") })
}

// Hosts returns the notes of the hosts of a cluster that are alive, by address.
func (r *Register) Hosts(cluster string) []Machine {
	found := r.others(func(name string) bool { return strings.HasPrefix(name, HostName(cluster, "")) })
	return slices.SortedFunc(maps.Values(found), func(a, b Machine) int { return strings.Compare(a.Address, b.Address) })
}

// others returns the notes of those other machines that are alive, by name.
func (r *Register) others(want func(name string) bool) map[string]Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]Machine{}
	for name, m := range r.notes {
		if name != r.cfg.Name && want(name) && r.alive(name) {
			out[name] = m
		}
	}
	return out
}

// FollowHosts calls changed with the hosts of a cluster at once and whenever they change, until ctx is done.
func (r *Register) FollowHosts(ctx context.Context, cluster string, changed func([]Machine)) {
	select {
	case <-r.known:
	case <-ctx.Done():
		return
	}
	last := r.Hosts(cluster)
	changed(last)
	for range wire.Every(ctx, time.Second) {
		if now := r.Hosts(cluster); !reflect.DeepEqual(now, last) {
			last = now
			changed(now)
		}
	}
}
