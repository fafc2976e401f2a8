package register_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/register"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/tests/bubble"
	"patchbay/tests/natsserver"
)

func TestMain(m *testing.M) { ipctest.Main(m) }

// join announces a machine on a server. Close stops its heartbeats without a word if it is called with the connection.
func join(t *testing.T, e *bubble.Server, name string, note func() register.Machine) *register.Member {
	t.Helper()
	m, err := register.Join(t.Context(), e.URL, wire.Access{}, e, register.Config{
		Name: name, Note: note, Log: zerolog.Nop(),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// connect returns a connection to a server.
func connect(t *testing.T, e *bubble.Server) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(e.URL, nats.InProcessServer(e))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// await reads c until it has the wanted list.
func await(t *testing.T, what string, c <-chan []register.Machine, want ...register.Machine) {
	t.Helper()
	late := time.After(2 * time.Minute) // a guard: what dies is gone after 12 s, and a note is written every 10 s
	var last []register.Machine
	for {
		select {
		case last = <-c:
			if len(last) == 0 && len(want) == 0 || reflect.DeepEqual(last, want) {
				return
			}
		case <-late:
			t.Fatalf("%s: the last list is %+v", what, last)
		}
	}
}

// host returns the register's name and the note of a host.
func host(cluster, address string) (string, register.Machine) {
	note := register.Machine{V: 1, Address: address, Version: "1", Devices: "cpu", Ranks: 1}
	return register.HostName(cluster, address), note
}

// TestHostsComeAndGo checks that a host that joins a cluster is listed there and in no other and not among the daemons,
// that a change of its files is, that one that leaves disappears at once, and that one that dies silently disappears
// once its heartbeats have stopped.
func TestHostsComeAndGo(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := bubble.Start(t, natsserver.Inside(t.TempDir()))
		leader := join(t, e, register.LeaderName("d"), nil)
		lists := make(chan []register.Machine, 1000)
		go leader.FollowHosts(t.Context(), "cards", func(now []register.Machine) { lists <- now })
		await(t, "nobody is there", lists)
		name, a := host("cards", "a.example:7117")
		var copied atomic.Bool
		withFile := func() register.Machine {
			m := a
			m.Files = []files.NeededFile{{Kind: "loras", Name: "x", Hash: fmt.Sprint(copied.Load())}}
			return m
		}
		before := withFile()
		leaving := join(t, e, name, withFile)
		await(t, "one has joined", lists, before)
		copied.Store(true)
		after := withFile()
		await(t, "a file of it is another one", lists, after)
		name, b := host("cards", "[::1]:7118")
		nc, js := connect(t, e)
		silent, err := register.Open(t.Context(), js, register.Config{
			Name: name, Note: func() register.Machine { return b }, Log: zerolog.Nop(),
		})
		if err == nil {
			err = silent.Beat(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		await(t, "two have joined", lists, b, after)
		leaving.Close()
		await(t, "one has left", lists, b)
		nc.Close() // it says nothing any more
		silent.Close()
		await(t, "one says nothing any more", lists)
	})
}

// TestDaemonsAndHosts checks who is listed where, also for a machine that comes later.
func TestDaemonsAndHosts(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := bubble.Start(t, natsserver.Inside(t.TempDir()))
		d := join(t, e, "d-1", func() register.Machine { return register.Machine{Machine: "one", Memory: 5} })
		for _, cluster := range []string{"cards", "others"} {
			name, m := host(cluster, cluster+".example:7117")
			join(t, e, name, func() register.Machine { return m })
		}
		join(t, e, register.LeaderName("d-2"), nil)
		late := join(t, e, "d-3", func() register.Machine { return register.Machine{Machine: "three"} })
		heard := make(chan []register.Machine, 1000)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go late.FollowHosts(ctx, "cards", func(now []register.Machine) { heard <- now })
		_, cards := host("cards", "cards.example:7117")
		await(t, "a host of the cluster", heard, cards)
		for deadline := time.Now().Add(time.Minute); len(d.Daemons()) != 1 || len(late.Daemons()) != 1; {
			if time.Now().After(deadline) {
				t.Fatalf("daemons know %v and %v", d.Daemons(), late.Daemons())
			}
			time.Sleep(time.Millisecond)
		}
		if got := late.Daemons()["d-1"]; got.Machine != "one" || got.Memory != 5 {
			t.Errorf("d-1 is %+v", got)
		}
		if err := late.Daemons()["d-1"].Lacks(nil, 6); err == nil || !strings.Contains(err.Error(), "6 bytes") {
			t.Errorf("a job that needs too much memory: %v", err)
		}
	})
}

// TestLongNote checks that a note that is longer than a message still says where a host is.
func TestLongNote(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := bubble.Start(t, natsserver.JetStream(t)) // messages of 1 MiB
		name, m := host("cards", "a.example:7117")
		m.Files = []files.NeededFile{{Kind: "loras", Name: strings.Repeat("x", 2<<20)}}
		short := m
		short.Files = nil
		join(t, e, name, func() register.Machine { return m })
		leader := join(t, e, register.LeaderName("d"), nil)
		lists := make(chan []register.Machine, 1000)
		go leader.FollowHosts(t.Context(), "cards", func(now []register.Machine) { lists <- now })
		await(t, "without its files", lists, short)
	})
}

// TestReplicasStay checks that a machine that does not say how many replicas the bucket has leaves them alone: a host
// must not take away the copies that daemons have asked for.
func TestReplicasStay(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := bubble.Start(t, natsserver.Inside(t.TempDir()))
		_, js := connect(t, e)
		if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
			Bucket: message.MachineBucket, Description: "as daemons made it",
		}); err != nil {
			t.Fatal(err)
		}
		name, m := host("cards", "a.example:7117")
		join(t, e, name, func() register.Machine { return m })
		s, err := js.Stream(t.Context(), "KV_"+message.MachineBucket)
		if err != nil || s.CachedInfo().Config.Description != "as daemons made it" {
			t.Errorf("the bucket was changed: %+v, %v", s.CachedInfo().Config, err)
		}
	})
}

// TestRivals checks that of two processes under one name the one that began later is told, and the other is not; that
// a third learns of the first before it has written anything; and that one that follows a process that has died, whose
// heartbeat is still there, is told of nobody.
func TestRivals(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := bubble.Start(t, natsserver.Inside(t.TempDir()))
		_, js := connect(t, e)
		open := func() *register.Register {
			t.Helper()
			r, err := register.Open(t.Context(), js, register.Config{Name: "d-1", Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		first := open()
		if err := first.Alone(t.Context()); err != nil {
			t.Errorf("the first process is told: %v", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		if err := first.Beat(ctx); err != nil { // before the others look who is there
			t.Fatal(err)
		}
		var beats sync.WaitGroup
		beats.Go(func() {
			for ctx.Err() == nil && first.Beat(ctx) == nil {
				_ = wire.Pause(ctx, time.Millisecond)
			}
		})
		second, third := open(), open()
		for range 2 { // the second heartbeat says since when
			if err := second.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := third.Alone(t.Context()); err == nil || !strings.Contains(err.Error(), "d-1") {
			t.Errorf("a process that has written nothing is told %v", err)
		}
		select {
		case <-second.Rival():
		case <-time.After(time.Minute):
			t.Error("the second process is not told")
		}
		for began := time.Now(); !first.Heard("d-1", began); time.Sleep(time.Millisecond) {
			// what the second wrote before has been read then
		}
		stop()
		beats.Wait()
		second.Close()
		third.Close()
		select {
		case <-first.Rival():
			t.Error("the first process is told of those that came later")
		default:
		}
		kv, err := js.KeyValue(t.Context(), message.MachineBucket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Get(t.Context(), "d-1"); err != nil {
			t.Errorf("a rival has removed the heartbeat of the first process: %v", err)
		}
		first.Close()
		if _, err := kv.Put(t.Context(), "d-1", []byte("2026-01-01T00:00:00Z died 5")); err != nil {
			t.Fatal(err)
		}
		last := open()
		defer last.Close()
		if err := last.Alone(t.Context()); err != nil {
			t.Errorf("after the end of the other: %v", err)
		}
	})
}

// TestNewcomersAreAnswered checks that a process whose next heartbeat is late answers a newcomer of its name at once.
func TestNewcomersAreAnswered(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := bubble.Start(t, natsserver.Inside(t.TempDir()))
		_, js := connect(t, e)
		var both [2]*register.Register
		for i := range both {
			var err error
			both[i], err = register.Open(t.Context(), js, register.Config{Name: "d-1", Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			defer both[i].Close()
			if i == 0 { // it beats twice, and never again
				for range 2 {
					if err := both[i].Beat(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := both[1].Alone(t.Context()); err == nil || !strings.Contains(err.Error(), "d-1") {
			t.Errorf("the newcomer is told %v", err)
		}
		select {
		case <-both[0].Rival():
			t.Error("the first process gives way to the newcomer")
		default:
		}
	})
}

// TestNoJetStream checks that joining fails on a server without JetStream.
func TestNoJetStream(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := bubble.Start(t, natsserver.Inside(""))
		_, err := register.Join(t.Context(), e.URL, wire.Access{}, e, register.Config{Name: "d"}, nil)
		if err == nil || !strings.Contains(err.Error(), "no JetStream") {
			t.Errorf("a server without JetStream: %v", err)
		}
	})
}
