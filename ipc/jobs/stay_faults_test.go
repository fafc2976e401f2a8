package jobs

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/natsproxy"
)

// TestConnectionLeavesServerThatIsCutOff checks that a connection stays at a server where every other request to
// JetStream is lost, leaves one where all are lost for the next of its list, and stays there. With no other server in
// its list it stays.
func TestConnectionLeavesServerThatIsCutOff(t *testing.T) { // not parallel: answers are counted by the clock
	var lost atomic.Int32 // by the first server: 0 none, 1 every other, 2 all
	var asked [2]atomic.Int32
	front := func(i int) *natsproxy.Proxy {
		e := jetstreamServer(t, false)
		return natsproxy.Start(t, strings.TrimPrefix(e.URL, "nats://"), func(_ int, subject string) natsproxy.Fault {
			if subject != "$JS.API.INFO" {
				return natsproxy.Pass
			}
			n := asked[i].Add(1)
			if how := lost.Load(); i == 0 && (how == 2 || how == 1 && n%2 == 1) {
				return natsproxy.Drop
			}
			return natsproxy.Pass
		})
	}
	first, second := front(0), front(1)
	connect := func(urls ...string) *nats.Conn {
		nc, err := nats.Connect(strings.Join(urls, ","), nats.DontRandomize(), nats.ReconnectWait(time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	const every, after = 100 * time.Millisecond, 1600 * time.Millisecond
	ctx := wiretest.Context(t)
	more := func(i int, n int32) {
		from := asked[i].Load()
		eventually(ctx, t, "the server is asked", func() bool { return asked[i].Load() >= from+n })
	}
	lost.Store(1)
	nc := connect(first.URL, second.URL)
	go stay(nc, zerolog.Nop(), every, after)
	more(0, 12)
	if nc.ConnectedUrl() != first.URL || nc.Stats().Reconnects != 0 {
		t.Errorf("it is at %s after %d reconnects, want to stay where every other question is answered", nc.ConnectedUrl(),
			nc.Stats().Reconnects)
	}
	lone := connect(first.URL)
	go stay(lone, zerolog.Nop(), every, after)
	lost.Store(2)
	eventually(ctx, t, "it leaves", func() bool { return nc.ConnectedUrl() == second.URL && nc.IsConnected() })
	more(1, 12)
	more(0, 12)
	if nc.ConnectedUrl() != second.URL || nc.Stats().Reconnects != 1 {
		t.Errorf("it is at %s after %d reconnects, want to stay where it is answered", nc.ConnectedUrl(),
			nc.Stats().Reconnects)
	}
	if lone.Stats().Reconnects != 0 {
		t.Errorf("a connection without another server has reconnected %d times", lone.Stats().Reconnects)
	}
}
