package jobs

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
	"patchbay/tests/natsproxy"
)

// dialer reaches proxies by their addresses.
type dialer map[string]*natsproxy.Proxy

func (d dialer) Dial(_, address string) (net.Conn, error) { return d[address].InProcessConn() }

// TestConnectionLeavesServerThatIsCutOff checks that a connection stays at a server where every other request to
// JetStream is lost, leaves one where all are lost for the next of its list, and stays there. With no other server in
// its list it stays.
func TestConnectionLeavesServerThatIsCutOff(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		var lost atomic.Int32 // by the first server: 0 none, 1 every other, 2 all
		var asked [2]atomic.Int32
		front := func(i int) *natsproxy.Proxy {
			e := jetstreamServer(t, false)
			return natsproxy.Within(t, e, func(_ int, subject string) natsproxy.Fault {
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
		first, second := "nats://127.0.0.1:1", "nats://127.0.0.1:2"
		all := dialer{"127.0.0.1:1": front(0), "127.0.0.1:2": front(1)}
		connect := func(urls ...string) *nats.Conn {
			nc, err := nats.Connect(strings.Join(urls, ","), nats.DontRandomize(), nats.ReconnectWait(time.Millisecond),
				nats.SetCustomDialer(all))
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
		nc := connect(first, second)
		go stay(nc, zerolog.Nop(), every, after)
		more(0, 12)
		if nc.ConnectedUrl() != first || nc.Stats().Reconnects != 0 {
			t.Errorf("it is at %s after %d reconnects, want to stay where every other question is answered", nc.ConnectedUrl(),
				nc.Stats().Reconnects)
		}
		lone := connect(first)
		go stay(lone, zerolog.Nop(), every, after)
		lost.Store(2)
		eventually(ctx, t, "it leaves", func() bool { return nc.ConnectedUrl() == second && nc.IsConnected() })
		more(1, 12)
		more(0, 12)
		if nc.ConnectedUrl() != second || nc.Stats().Reconnects != 1 {
			t.Errorf("it is at %s after %d reconnects, want to stay where it is answered", nc.ConnectedUrl(),
				nc.Stats().Reconnects)
		}
		if lone.Stats().Reconnects != 0 {
			t.Errorf("a connection without another server has reconnected %d times", lone.Stats().Reconnects)
		}
	})
}
