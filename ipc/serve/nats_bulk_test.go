package serve_test

import (
	"testing"

	"github.com/rs/zerolog"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire/wiretest"
)

// TestFetchesLeaveNothingBehind fetches files that come beside their messages from another daemon, and checks that the
// connection has as many subscriptions as before.
func TestFetchesLeaveNothingBehind(t *testing.T) {
	r := newNATSRig(t)
	if _, _, end := ipctest.RunJob(t, r.client(t), &message.RunRequest{
		ID: "j", Workflow: messagetest.Graph("Picture 600000"),
	}); end.Type != message.EventSuccess {
		t.Fatalf("ended with %+v", end)
	}
	n, err := serve.ConnectNATS(serve.NATSConfig{URL: r.url, Version: "0.1.0", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	before := n.Subscriptions()
	for range 3 {
		if files, err := n.Fetch(wiretest.Context(t), "j"); err != nil || len(files) != 1 ||
			len(files[0].Data) != 600000 {
			t.Fatalf("fetched %d files, %v", len(files), err)
		}
	}
	if after := n.Subscriptions(); after != before {
		t.Errorf("%d subscriptions, %d before the fetches", after, before)
	}
}
