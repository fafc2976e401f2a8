package broker_test

import (
	"bytes"
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

// TestUsersFileSettings checks that a file of users is refused if it says something about who may connect that the
// server inside does not read, with the name of the setting and what to do, and that other settings are named in the
// log.
func TestUsersFileSettings(t *testing.T) {
	t.Parallel()
	const list = "users = [ { user: u, password: p } ]"
	const users = "authorization { timeout: 3, default_permissions: { publish: \"a\" }, " + list + " }\n"
	for _, c := range []struct{ text, refused, logged string }{
		{users, "", ""},
		{users + "debug: false\nListen: \"0.0.0.0:4222\"\n", "", `"settings":["Listen","debug"]`},
		{users + "accounts { A { users: [ { user: a, password: b } ] } }", "accounts: run nats-server", ""},
		{users + "No_Auth_User: u", "no_auth_user: run nats-server", ""},
		{users + "tls { cert_file: \"c\", key_file: \"k\" }", "tls: give --tls-cert", ""},
		{"authorization { token: t, " + list + " }", "authorization.token: give --token-file", ""},
		{"authorization { user: a, password: b, " + list + " }", "authorization.password: list it", ""},
		{"authorization { auth_callout { issuer: A }, " + list + " }", "authorization.auth_callout: run nats-server", ""},
		{"debug: true", "has no users", `"settings":["debug"]`},
	} {
		file := filepath.Join(t.TempDir(), "users.conf")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		e, err := broker.StartEmbedded(broker.EmbeddedConfig{Listen: "127.0.0.1:0", Users: file, Log: zerolog.New(&log)})
		if err == nil {
			e.Close()
		}
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, want %q", c.text, err, c.refused)
		}
		if noted := strings.Contains(log.String(), `"settings"`); noted != (c.logged != "") ||
			!strings.Contains(log.String(), c.logged) {
			t.Errorf("%s: logged %s, want %s", c.text, log.String(), c.logged)
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
		j := jobs.New(l.On(jobs.Config{}))
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
