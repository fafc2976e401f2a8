package rights_test

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/rights"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
)

// TestEverySubjectOfEveryRole checks, for every subject, which roles may publish to it and which may subscribe.
func TestEverySubjectOfEveryRole(t *testing.T) {
	g := ipctest.NewGuardedServer(t, 0)
	const c, a, d = "alice ", "admin ", "worker-1 " // who may
	for _, row := range []struct{ subject, publish, subscribe string }{
		{"patchbay.v1.run", c + a + d, d},
		{"patchbay.v1.submit", c + a + d, d},
		{"patchbay.v1.status.j", c + a + d, d},
		{"patchbay.v1.cancel.j", c + a + d, d},
		{"patchbay.v1.retry.j", c + a + d, d},
		{"patchbay.v1.jobs", c + a + d, d},
		{"patchbay.v1.describe", c + a + d, d},
		{"patchbay.v1.models", c + a + d, d},
		{"patchbay.v1.exec", c + a + d, d},
		{"patchbay.v1.sample", c + a + d, d},
		{"patchbay.v1.load", c + a + d, d},
		{"patchbay.v1.free", a + d, d},
		{"patchbay.v1.stats", c + a + d, d},
		{"patchbay.v1.events.j.progress", d, c + a + d},
		{"patchbay.v1.events.j.execution_success", d, c + a + d},
		{"patchbay.v1.preview.j", d, c + a + d},
		{"patchbay.v1.preview.j.on", c + a + d, d},
		{"patchbay.v1.q.high.any.j", d, d},
		{"patchbay.v1.blob.d-1.get", c + a + d, d},
		{"patchbay.v1.blob.d-1.ack.x", c + a + d, d},
		{"patchbay.v1.blob.d-1.put.x", c + a + d, d},
		{"$O.other.C.x", "", ""},
		{"$JS.API.STREAM.CREATE.OBJ_other", "", ""},
		{"patchbay.v1.dead.j", d, a + d},
		{"$KV.patchbay-jobs.j", d, ""},
		{"$KV.patchbay-requests.j.h.0", d, ""},
		{"$KV.patchbay-nodes.d-1", d, ""},
		{"$SRV.INFO.patchbay", a, d},
		{"$SRV.STATS", a, d},
		{"$JS.API.STREAM.CREATE.OTHER", "", ""},
		{"$JS.API.STREAM.DELETE.PATCHBAY_EVENTS_1", "", ""},
		{"$JS.API.STREAM.UPDATE.KV_patchbay-jobs", d, ""},
		{"$JS.API.STREAM.PURGE.PATCHBAY_DEAD_1", a + d, ""},
		{"$JS.API.STREAM.INFO.PATCHBAY_EVENTS_1", a + d, ""},
		{"$JS.API.STREAM.MSG.GET.KV_patchbay-jobs", a + d, ""},
		{"$JS.API.DIRECT.GET.KV_patchbay-jobs.$KV.patchbay-jobs.j", a + d, ""},
		{"$JS.API.CONSUMER.CREATE.PATCHBAY_EVENTS_1.x", a + d, ""},
		{"$JS.API.CONSUMER.MSG.NEXT.PATCHBAY_DEAD_1.x", a + d, ""},
		{"$JS.API.STREAM.MSG.GET.OTHER", "", ""},
		{"$SYS.REQ.SERVER.PING", "", ""},
		{"$SYS.>", "", ""},
		{"_INBOX.bob.1", d, ""},
		{"_INBOX.bob.>", "-", ""},
		{"_INBOX.*.>", "-", ""},
		{"_INBOX.>", "-", ""},
		{"_INBOX.alice.>", "-", c},
		{"_INBOX." + g.Admin + ".x", d, a},
		{"_INBOX.worker-1.x", d, d},
		{"patchbay.v1.>", "-", d},
		{"patchbay.v1.events.>", "-", c + a + d},
		{"other", "", ""},
		{">", "-", ""},
	} {
		for _, user := range []string{"alice", "admin", "worker-1"} {
			nc, violations := g.Raw(t, user)
			check := func(what, may string, do func() error) {
				if err := do(); err != nil {
					t.Fatalf("%s %s as %s: %v", what, row.subject, user, err)
				}
				if err := nc.Flush(); err != nil {
					t.Fatal(err)
				}
				var got error
				if want := !strings.Contains(may, user+" "); want {
					select {
					case got = <-violations:
					case <-time.After(time.Minute):
						t.Errorf("%s may %s %s, and must not", user, what, row.subject)
						return
					}
					if !errors.Is(got, nats.ErrPermissionViolation) {
						t.Errorf("%s %s as %s: got %v, want a permissions violation", what, row.subject, user, got)
					}
					return
				}
				// violations come in order, but later than the answer to Flush: wait for one that is sure
				if err := nc.Publish("forbidden", nil); err != nil {
					t.Fatal(err)
				}
				for {
					select {
					case got = <-violations:
					case <-time.After(time.Minute):
						t.Fatalf("%s may publish anything", user)
					}
					if strings.Contains(got.Error(), `"forbidden"`) {
						return
					}
					t.Errorf("%s may not %s %s: %v", user, what, row.subject, got)
				}
			}
			if row.publish != "-" { // wildcards
				check("publish to", row.publish, func() error { return nc.Publish(row.subject, nil) })
			}
			check("subscribe to", row.subscribe, func() error { _, err := nc.SubscribeSync(row.subject); return err })
			nc.Close()
		}
	}
}

// TestEveryActionOfEveryRole does what each role is there for, and checks that no permission is missing, neither the
// role's nor the daemon's that answers.
func TestEveryActionOfEveryRole(t *testing.T) {
	g := ipctest.NewGuardedServer(t, 0)
	for _, user := range []string{"alice", "admin"} {
		c := g.Client(t, user)
		ctx := wiretest.Context(t)
		id := "run-" + user
		end, err := client.Run(ctx, c, &message.RunRequest{
			ID: id, Workflow: messagetest.Graph("Step 2", "Picture 2000000"),
			Preview: true, Inputs: map[string][]byte{"big": make([]byte, 3<<20)},
		}, &client.Collector{})
		if err != nil || end == nil || end.Type != message.EventSuccess {
			t.Fatalf("%s: run: %+v, %v", user, end, err)
		}
		if _, err := client.Submit(ctx, c, &message.RunRequest{
			ID:       "wait-" + user,
			Workflow: messagetest.Graph("Wait 20000"),
		}); err != nil {
			t.Errorf("%s: submit: %v", user, err)
		}
		if _, _, err := client.Cancel(ctx, c, "wait-"+user); err != nil {
			t.Errorf("%s: cancel: %v", user, err)
		}
		if end, err := client.Follow(ctx, c, id, 0, false, &client.Collector{}); err != nil || end == nil {
			t.Errorf("%s: follow: %v", user, err)
		}
		if files, err := client.Fetch(ctx, c, id); err != nil || len(files) != 1 {
			t.Errorf("%s: fetch: %d files, %v", user, len(files), err)
		}
		if _, _, err := client.List(ctx, c, "", 10); err != nil {
			t.Errorf("%s: jobs: %v", user, err)
		}
		if _, err := client.Describe(ctx, c, "Wait"); err != nil {
			t.Errorf("%s: describe: %v", user, err)
		}
		// any answer of the daemon will do
		for _, verb := range []string{
			message.VerbModels, message.VerbExec, message.VerbSample, message.VerbLoad,
			message.VerbRetry, message.VerbStats, message.VerbFree,
		} {
			r, err := c.Ask(ctx, verb, id, nil)
			if err == nil {
				_, err = r.One(ctx)
			}
			var refused *fault.Error
			allowed := err == nil || errors.As(err, &refused)
			if want := verb != message.VerbFree || user == "admin"; allowed != want {
				t.Errorf("%s: %s: allowed %v, want %v (%v)", user, verb, allowed, want, err)
			}
		}
	}
	nc, _ := g.Raw(t, "admin")
	if _, err := nc.Request("$SRV.STATS.patchbay", nil, time.Minute); err != nil {
		t.Errorf("admin: service stats: %v", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx := wiretest.Context(t)
	kv, err := js.KeyValue(ctx, message.JobBucket)
	if err != nil {
		t.Fatalf("admin: bucket: %v", err)
	}
	if e, err := kv.Get(ctx, "run-alice"); err != nil || !bytes.Contains(e.Value(), []byte(`"done"`)) {
		t.Errorf("admin: record: %v", err)
	}
	s, err := js.Stream(ctx, message.EventStream)
	if err != nil {
		t.Fatalf("admin: stream: %v", err)
	}
	oc, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatalf("admin: replay: %v", err)
	}
	if m, err := oc.Next(jetstream.FetchMaxWait(time.Minute)); err != nil ||
		!strings.HasPrefix(m.Subject(), "patchbay.v1.events.") {
		t.Errorf("admin: replay: %v", err)
	}
	if err := s.Purge(ctx); err != nil {
		t.Errorf("admin: purge: %v", err)
	}
	if strings.Contains(strings.ToLower(g.Log.String()), "violation") {
		t.Errorf("the daemon lacks rights:\n%s", g.Log)
	}
}

// TestRepliesGoToInboxesOnly checks that the daemon does not reply to subjects where only it may write.
func TestRepliesGoToInboxesOnly(t *testing.T) {
	g := ipctest.NewGuardedServer(t, 0)
	d, _ := g.Raw(t, "worker-1")
	heard, err := d.SubscribeSync("patchbay.v1.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	alice, _ := g.Raw(t, "alice")
	victims := []string{
		"$KV.patchbay-jobs.victim", "$KV.patchbay-requests.victim.h.0", "$JS.API.STREAM.PURGE.PATCHBAY_EVENTS_1",
		"patchbay.v1.events.victim.execution_success",
		"patchbay.v1.q.high.any.victim", "patchbay.v1.dead.victim", "patchbay.v1.free",
	}
	for _, reply := range victims {
		for _, verb := range []string{"describe", "jobs", "submit", "status.nojob", "run"} {
			if err := alice.PublishRequest(wire.SubjectRoot+verb, reply, []byte(`{"class":"Wait"}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, verb := range []string{"describe", "jobs", "submit", "status.nojob", "run"} { // answered after all of the above
		if _, err := alice.Request(wire.SubjectRoot+verb, []byte(`{"class":"Wait"}`), time.Minute); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
	}
	for {
		m, err := heard.NextMsg(100 * time.Millisecond)
		if err != nil {
			break
		}
		if slices.Contains(victims, m.Subject) {
			t.Errorf("the daemon wrote %q to %s", m.Data, m.Subject)
		}
	}
	js, err := jetstream.New(d)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(wiretest.Context(t), message.JobBucket)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(wiretest.Context(t), "victim"); err == nil {
		t.Errorf("the daemon wrote %q over a record", e.Value())
	}
	// nats-server 2.15.3 itself drops a request with a reply to JetStream: the daemon does not see it.
	victims = slices.DeleteFunc(victims, func(reply string) bool { return strings.HasPrefix(reply, "$JS.") })
	if n := strings.Count(g.Log.String(), "request dropped"); n < len(victims)*5 {
		t.Errorf("%d requests dropped, want %d", n, len(victims)*5)
	}
}

// TestNobodyReadsOthersReplies checks that bob hears nothing of what the daemon answers to alice.
func TestNobodyReadsOthersReplies(t *testing.T) {
	g := ipctest.NewGuardedServer(t, 0)
	bob, violations := g.Raw(t, "bob")
	heard, err := bob.SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	inbox, err := bob.SubscribeSync("_INBOX.bob.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := bob.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := <-violations; !strings.Contains(err.Error(), `"_INBOX.>"`) {
		t.Errorf("got %v", err)
	}
	if _, _, err := client.List(wiretest.Context(t), g.Client(t, "alice"), "", 1); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []*nats.Subscription{heard, inbox} {
		if m, err := sub.NextMsg(100 * time.Millisecond); err == nil {
			t.Errorf("bob read %q", m.Data)
		}
	}
	// A client with a prefix that is not its own gets an error at once.
	url, access := g.Login("bob")
	access.Inbox = "_INBOX.alice"
	c, err := client.DialNATSAs(url, access)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := wiretest.Context(t)
	if _, _, err := client.List(ctx, c, "", 1); err == nil || !strings.Contains(err.Error(), "does not allow") ||
		ctx.Err() != nil {
		t.Errorf("got %v (%v), want a refusal that says so", err, ctx.Err())
	}
}

// TestExampleOfServer checks that examples/nats-server.conf holds the permissions that the program prints. Package
// broker tests that a server takes them.
func TestExampleOfServer(t *testing.T) {
	text, err := os.ReadFile("../../examples/nats-server.conf")
	if err != nil {
		t.Fatal(err)
	}
	users, err := rights.ParseUsers("daemon=daemon,admin=admin,client=alice,client=bob")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(text), "\n\n"+rights.ServerConfig(users)) {
		t.Error("examples/nats-server.conf does not end with what `patchbay serve --print-permissions` prints")
	}
	for _, bad := range []string{"", "alice", "boss=alice", "client=", "client=a.b", "client=a,client=a"} {
		if _, err := rights.ParseUsers(bad); err == nil {
			t.Errorf("users %q were taken", bad)
		}
	}
}
