package bulk

import (
	"testing"

	"github.com/nats-io/nats.go"

	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/natsserver"
)

// TestNothingBeginsAfterClose checks that a pull handled after Close has begun starts no transfer, for which Close
// might not wait, and that no subscription is left.
func TestNothingBeginsAfterClose(t *testing.T) {
	nc, err := nats.Connect(natsserver.Start(t, natsserver.Inside("")).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	b, err := NewBlobs(nc, nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if n := nc.NumSubscriptions(); n != 0 {
		t.Errorf("%d subscriptions are left", n)
	}
	ref := b.Offer(make([]byte, ChunkBytes)) // by a reply that came late
	defer b.Drop(ref)
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	ask, err := wire.EncodeMsgpack(PullRequest{ID: ref.ID, Chunk: ChunkBytes, Window: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.get(&nats.Msg{Subject: ref.Subject, Reply: sub.Subject, Data: ask})
	m, err := sub.NextMsgWithContext(wiretest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if m.Header.Get(headerFault) == "" {
		t.Errorf("got a chunk of %d bytes, want a refusal", len(m.Data))
	}
}
