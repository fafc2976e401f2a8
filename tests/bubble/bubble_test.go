package bubble

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/tests/natsserver"
)

// TestServerOutlivesItsEnds checks that a server that was closed, and one that was killed, has the messages that it had
// acknowledged, that its clients come back, and that hours of waiting take no time.
func TestServerOutlivesItsEnds(t *testing.T) {
	began := time.Now()
	for range 2 { // the second bubble must not get what the first one has left
		Run(t, func(t *testing.T) {
			s := Start(t, natsserver.JetStream(t))
			nc, err := nats.Connect(s.URL, nats.InProcessServer(s), nats.MaxReconnects(-1))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			js, err := jetstream.New(nc)
			if err == nil {
				_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"a"}})
			}
			for i, end := range []func(){s.Close, s.Kill} {
				if err == nil {
					_, err = js.Publish(t.Context(), "a", []byte(strings.Repeat("x", 100_000)))
				}
				if err != nil {
					t.Fatal(err)
				}
				end()
				time.Sleep(time.Hour)
				if nc.IsConnected() {
					t.Error("a client is connected to a server that is down")
				}
				s.Start()
				time.Sleep(time.Minute)
				var stream jetstream.Stream
				if stream, err = js.Stream(t.Context(), "s"); err != nil {
					t.Fatal(err)
				}
				if n := stream.CachedInfo().State.Msgs; n != uint64(i+1) {
					t.Errorf("the stream has %d messages, want %d", n, i+1)
				}
			}
		})
	}
	if took := time.Since(began); took > time.Hour {
		t.Errorf("it took %s", took)
	}
}
