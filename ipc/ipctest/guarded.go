package ipctest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"patchbay/ipc/client"
	"patchbay/ipc/jobs"
	"patchbay/ipc/rights"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/natsserver"
)

// lines collects what a logger writes.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// guardedServer is a daemon on a server whose users have the rights of ServerConfig.
type guardedServer struct {
	*Rig
	addr  string
	seed  string // file with the NKey of the admin
	Admin string // its public key
	Log   *lines // of the daemon
}

// NewGuardedServer starts a guarded server. perClient limits the jobs of a client; 0 means no limit.
func NewGuardedServer(t *testing.T, perClient int) *guardedServer {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	g := &guardedServer{Log: &lines{}, seed: filepath.Join(t.TempDir(), "admin.nk")}
	if g.Admin, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	users, err := rights.ParseUsers("daemon=worker-1,admin=" + g.Admin + ",client=alice,client=bob")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(g.seed, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	conf := []string{natsserver.Inside(t.TempDir())}
	for _, name := range []string{"worker-1", "alice", "bob"} {
		conf = append(conf, fmt.Sprintf("%s: pass-%s\n", rights.PasswordVariable(name), name))
	}
	g.addr = strings.TrimPrefix(natsserver.Start(t, append(conf, rights.ServerConfig(users))...).URL, "nats://")
	log := zerolog.New(g.Log)
	url := "nats://worker-1:pass-worker-1@" + g.addr
	l, err := jobs.OpenJetStream(context.Background(), jobs.JetStreamConfig{URL: url, Owner: "d-1", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	n, err := serve.ConnectNATS(serve.NATSConfig{
		URL: url, Version: "0.1.0", Owner: "d-1", Log: log,
		Stats: func() any { return map[string]int{"queued": 0} },
	})
	if err != nil {
		t.Fatal(err)
	}
	g.Rig = NewRig(t, jobs.Config{OnEvent: n.Event, OnPreview: n.Preview, Store: l, MaxPerClient: perClient},
		jobs.OutputsConfig{})
	t.Cleanup(l.Close)
	if err := g.Jobs.Open(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Serve(ctx, ctx, g.Service) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c := g.Client(t, "alice")
	for range 200 {
		if _, _, err := client.List(wiretest.Context(t), c, "", 1); err == nil {
			return g
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("the service does not answer:\n%s", g.Log)
	return nil
}

// Login returns the URL and the credentials of a user: the admin has an NKey, the others a password in the URL.
func (g *guardedServer) Login(user string) (string, wire.Access) {
	if user == "admin" {
		return "nats://" + g.addr, wire.Access{NKey: g.seed}
	}
	return "nats://" + user + ":pass-" + user + "@" + g.addr, wire.Access{}
}

func (g *guardedServer) Client(t *testing.T, user string) *client.NATSClient {
	t.Helper()
	c, err := client.DialNATSAs(g.Login(user))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Raw returns a bare connection of a user. violations receives the server's refusals.
func (g *guardedServer) Raw(t *testing.T, user string) (nc *nats.Conn, violations chan error) {
	t.Helper()
	url, access := g.Login(user)
	opts, err := access.Options(url)
	if err != nil {
		t.Fatal(err)
	}
	violations = make(chan error, 100)
	nc, err = nats.Connect(url, append(opts,
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, violations
}
