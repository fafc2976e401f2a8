package members_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/members"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/tests/natsserver"
)

func TestMain(m *testing.M) { ipctest.Main(m) }

// limit is how long a condition may take on a busy machine.
const limit = time.Minute

// await reads c until ok holds for a value.
func await(t *testing.T, what string, c <-chan []members.Member, ok func([]members.Member) bool) {
	t.Helper()
	late := time.After(limit)
	var last []members.Member
	for {
		select {
		case last = <-c:
			if ok(last) {
				return
			}
		case <-late:
			t.Fatalf("%s: the last list is %+v", what, last)
		}
	}
}

// TestMembersComeAndGo checks that a host that joins a group is listed there and in no other, that one that leaves
// disappears at once, and that one that dies silently disappears once its entry has expired.
func TestMembersComeAndGo(t *testing.T) {
	e := natsserver.Start(t, natsserver.Inside(t.TempDir()))
	join := func(name string) *members.Group {
		t.Helper()
		g, err := members.Join(t.Context(), members.Config{URL: e.URL, Access: wire.Access{}, Group: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.Close)
		return g
	}
	lists := make(chan []members.Member, 100)
	go join("cards").Follow(t.Context(), func(now []members.Member) { lists <- now })
	await(t, "nobody is there", lists, func(l []members.Member) bool { return len(l) == 0 })
	a := members.Member{Address: "a.example:7117", Version: "1.2", Devices: "cuda:0-3", Ranks: 4}
	b := members.Member{Address: "[::1]:7118", Version: "1.1", Devices: "cpu", Ranks: 1}
	memberCtx, leave := context.WithCancel(t.Context())
	go join("others").Announce(t.Context(), b, nil, nil)
	copied := atomic.Bool{}
	go join("cards").Announce(memberCtx, a, func() map[string]string {
		return map[string]string{"loras/a": fmt.Sprint(copied.Load())}
	}, nil)
	a.Files = map[string]string{"loras/a": "false"}
	await(t, "one has joined", lists, func(l []members.Member) bool { return len(l) == 1 && l[0].Equal(a) })
	copied.Store(true)
	a.Files = map[string]string{"loras/a": "true"}
	await(t, "a file of it is another one", lists, func(l []members.Member) bool { return len(l) == 1 && l[0].Equal(a) })
	silent := join("cards")
	go silent.Announce(t.Context(), b, nil, nil)
	await(t, "two have joined", lists, func(l []members.Member) bool {
		return len(l) == 2 && l[0].Equal(b) && l[1].Equal(a)
	})
	leave()
	await(t, "one has left", lists, func(l []members.Member) bool { return len(l) == 1 && l[0].Equal(b) })
	silent.Close()
	await(t, "one says nothing any more", lists, func(l []members.Member) bool { return len(l) == 0 })
	if _, err := members.Join(t.Context(), members.Config{URL: e.URL, Group: "a.b"}); err == nil {
		t.Error("a group with a dot in its name was joined")
	}
}

// TestListMissesNobody checks that members whose entries are rewritten while a list is made are all in it.
func TestListMissesNobody(t *testing.T) {
	e := natsserver.Start(t, natsserver.Inside(t.TempDir()))
	group, err := members.Join(t.Context(), members.Config{URL: e.URL, Group: "cards"})
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	nc, err := nats.Connect(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), message.HostBucket)
	if err != nil {
		t.Fatal(err)
	}
	const hosts = 8
	write := func(ctx context.Context, i int) error {
		_, err := kv.Put(ctx, fmt.Sprintf("cards.%d", i), fmt.Appendf(nil, `{"address":"h%d:1"}`, i))
		return err
	}
	for i := range hosts {
		if err := write(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for i := range hosts {
		writers.Go(func() {
			for ctx.Err() == nil {
				_ = write(ctx, i) // fails when the test ends
			}
		})
	}
	defer writers.Wait()
	defer stop()
	for range 300 {
		if list, err := group.List(t.Context()); err != nil || len(list) != hosts {
			t.Fatalf("%d of %d hosts are listed, %v", len(list), hosts, err)
		}
	}
}

// TestMembersNeedJetStream checks that joining fails on a server without JetStream.
func TestMembersNeedJetStream(t *testing.T) {
	e := natsserver.Start(t, natsserver.Inside(""))
	if _, err := members.Join(t.Context(), members.Config{URL: e.URL, Group: "cards"}); err == nil {
		t.Error("a server without JetStream was joined")
	} else {
		t.Log(err)
	}
}
