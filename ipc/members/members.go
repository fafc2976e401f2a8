// Package members lets machines join a group by its name: each keeps an entry alive in a bucket of a NATS server, and
// whoever leads the group reads the entries. An entry says where a machine is and what it has. Who may use the machine
// is settled among the machines themselves.
package members

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// An entry is written every beat and expires a life after the last write.
const (
	beat = 2 * time.Second
	life = 10 * time.Second
)

// Member is what a machine announces about itself.
type Member struct {
	Address string `json:"address"` // HOST:PORT, where others reach it
	Version string `json:"version"` // of the program
	Devices string `json:"devices"` // as --devices names them
	Ranks   int    `json:"ranks"`   // places
	// Files tells its model files apart from others of their names: size and hash of the header, by KIND/NAME.
	Files map[string]string `json:"files,omitempty"`
}

// Equal reports whether m and o say the same.
func (m Member) Equal(o Member) bool {
	return m.Address == o.Address && m.Version == o.Version && m.Devices == o.Devices && m.Ranks == o.Ranks &&
		maps.Equal(m.Files, o.Files)
}

// Config says which server and which group.
type Config struct {
	URL       string
	Access    wire.Access
	InProcess nats.InProcessConnProvider // nil: by URL
	Group     string                     // wire.ValidID
}

// Group is a connection to the entries of a group. Close ends it.
type Group struct {
	nc     *nats.Conn
	kv     jetstream.KeyValue
	stream jetstream.Stream // of kv
	name   string
}

// Join connects to a server, which may become unreachable later. It returns an error if the server has no JetStream or
// the name of the group is not a wire.ValidID.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	if !wire.ValidID(cfg.Group) {
		return nil, fmt.Errorf("group %q: a name is 1 to 64 of A-Z a-z 0-9 _ -", cfg.Group)
	}
	nc, err := wire.Connect(cfg.URL, cfg.Access, cfg.InProcess, "patchbay hosts", nats.ReconnectBufSize(-1),
		nats.ReconnectWait(100*time.Millisecond), nats.PingInterval(10*time.Second))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: message.HostBucket, Description: "hosts that have joined a group", TTL: life,
		Storage: jetstream.MemoryStorage, // entries are rewritten all the time
	})
	if err != nil {
		nc.Close()
		if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders) {
			err = fmt.Errorf("the NATS server has no JetStream, where the hosts of a group are kept (not with --queue "+
				"memory): %w", err)
		}
		return nil, err
	}
	stream, err := js.Stream(ctx, "KV_"+message.HostBucket)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &Group{nc, kv, stream, cfg.Group}, nil
}

// Close ends the connection.
func (g *Group) Close() { g.nc.Close() }

// key returns the key of a member. It encodes the address, which has characters that keys must not have.
func (g *Group) key(m Member) string {
	return g.name + "." + base64.RawURLEncoding.EncodeToString([]byte(m.Address))
}

// Announce keeps the entry of a member alive until ctx is done, and then deletes it. If files is not nil, it is called
// for the member's files before every write. If say is not nil, it is called with an error when the server becomes
// unreachable, and with nil when it is back.
func (g *Group) Announce(ctx context.Context, m Member, files func() map[string]string, say func(error)) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	var last error
	for {
		if files != nil {
			m.Files = files()
		}
		text, _ := json.Marshal(m) // never fails
		once, cancel := context.WithTimeout(ctx, beat)
		_, err := g.kv.Put(once, g.key(m), text)
		cancel()
		if (err == nil) != (last == nil) && ctx.Err() == nil && say != nil {
			say(err)
		}
		last = err
		select {
		case <-tick.C:
		case <-ctx.Done():
			deletion, cancel := context.WithTimeout(context.WithoutCancel(ctx), beat)
			_ = g.kv.Delete(deletion, g.key(m)) // otherwise it expires
			cancel()
			return
		}
	}
}

// List returns the members that are alive, by address. Entries that cannot be read are left out. The keys come from
// the state of the stream: a listing of keys by a consumer misses an entry that is rewritten meanwhile.
func (g *Group) List(ctx context.Context) (out []Member, err error) {
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	prefix := "$KV." + message.HostBucket + "."
	info, err := g.stream.Info(ctx, jetstream.WithSubjectFilter(prefix+g.name+".*"))
	if err != nil {
		return nil, err
	}
	for subject := range info.State.Subjects {
		e, err := g.kv.Get(ctx, strings.TrimPrefix(subject, prefix))
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue // it has just expired
		}
		if err != nil {
			return nil, err
		}
		var m Member
		if json.Unmarshal(e.Value(), &m) == nil && m.Address != "" {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Address, b.Address) })
	return out, ctx.Err()
}

// Follow calls changed with the members at once and whenever they change, until ctx is done. While the server is away,
// they do not change.
func (g *Group) Follow(ctx context.Context, changed func([]Member)) {
	tick := time.NewTicker(beat / 2)
	defer tick.Stop()
	var last []Member
	for first := true; ; {
		if now, err := g.List(ctx); err == nil && (first || !slices.EqualFunc(now, last, Member.Equal)) {
			first, last = false, now
			changed(now)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
