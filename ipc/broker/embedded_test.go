package broker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/ipc/broker"
	"patchbay/ipc/client"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/rights"
	"patchbay/ipc/wire/wiretest"
)

// start starts a server on a free port, or where cfg says. It ends with the test.
func start(t *testing.T, cfg broker.EmbeddedConfig) *broker.Embedded {
	t.Helper()
	if cfg.Log = zerolog.Nop(); cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	e, err := broker.StartEmbedded(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestWhoIsLetIn checks that a taken port and an address open to all are refused with what to do, that a token admits
// its holder, and that the users file of the example admits the users that it names.
func TestWhoIsLetIn(t *testing.T) {
	for listen, want := range map[string]string{
		strings.TrimPrefix(start(t, broker.EmbeddedConfig{}).Address(), "nats://"): "--listen", "0.0.0.0:0": "token",
	} {
		_, err := broker.StartEmbedded(broker.EmbeddedConfig{Listen: listen, Log: zerolog.Nop()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("on %s: %v, want a word on %s", listen, err, want)
		}
	}
	secret := start(t, broker.EmbeddedConfig{Token: "s3cret"})
	if _, err := client.DialNATS(secret.Address()); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("without the token: %v", err)
	}
	for _, name := range []string{"daemon", "admin", "alice", "bob"} {
		t.Setenv(rights.PasswordVariable(name), "x")
	}
	users := start(t, broker.EmbeddedConfig{Listen: "0.0.0.0:0", Users: "../../examples/nats-server.conf"})
	port := users.Address()[strings.LastIndex(users.Address(), ":"):]
	for url, good := range map[string]bool{
		secret.URL(): true, "nats://alice:x@127.0.0.1" + port: true, "nats://alice:y@127.0.0.1" + port: false,
	} {
		c, err := client.DialNATS(url)
		if (err == nil) != good {
			t.Errorf("%s: %v, want in: %v", url, err, good)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}

// TestStoreFolderRemoved checks that a store gives no receipts without its folder, whichever part of it was removed.
func TestStoreFolderRemoved(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"", "jetstream", "jetstream/$G/streams/KV_" + message.JobBucket} {
		dir := filepath.Join(t.TempDir(), "nats")
		e := start(t, broker.EmbeddedConfig{Store: dir})
		ctx := wiretest.Context(t)
		l, err := jobs.OpenJetStream(ctx, jobs.JetStreamConfig{URL: e.URL(), Owner: "a", Full: e.Full, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		j := jobs.New(jobs.Config{Store: l})
		if err := j.Open(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, created, err := j.Create(ctx, &message.RunRequest{ID: "before"}, "hash"); !created || err != nil {
			t.Fatal(created, err)
		}
		if err := os.RemoveAll(filepath.Join(dir, part)); err != nil {
			t.Fatal(err)
		}
		if _, created, err := j.Create(ctx, &message.RunRequest{ID: "after"}, "hash"); created || err == nil ||
			!strings.Contains(err.Error(), "removed") {
			t.Errorf("without %q: created %v, %v; want a refusal that says so", part, created, err)
		}
		l.Close()
	}
}
