package jobs

import (
	"os"
	"strings"
	"testing"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
	"patchbay/tests/natsserver"
)

// TestStoreIsMadeAnew checks a server that has no streams of the store any more while the daemon runs: all or one of
// them deleted, a consumer deleted, or started again on another folder. The daemon makes them anew and says so, writes
// the records again that it knows, and goes on: a job that waited is handed out, and new ones are taken.
func TestStoreIsMadeAnew(t *testing.T) {
	remove := func(names ...string) func(*testing.T, *JetStream) {
		return func(t *testing.T, l *JetStream) {
			for _, name := range names {
				if err := l.js.DeleteStream(wiretest.Context(t), name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	cases := map[string]func(*testing.T, *JetStream){
		"all":      remove(message.Streams()...),
		"records":  remove("KV_" + message.JobBucket),
		"requests": remove("KV_" + message.RequestBucket),
		"machines": remove("KV_" + message.MachineBucket),
		"folder":   nil,
	}
	for name, harm := range cases {
		bubble.Part(t, name, func(t *testing.T) {
			dir := t.TempDir()
			e := bubble.Start(t, natsserver.Inside(dir))
			j, _ := durable(t, e, "a")
			l, ctx := storeOf(j), wiretest.Context(t)
			finish := func(rec message.Record) error {
				_, err := force(ctx, j, rec.Job, rec.Rev, func(r *message.Record) { r.State, r.Finished = message.Done, 1 })
				return err
			}
			mustCreate(t, j, &message.RunRequest{ID: "done"})
			rec, _, _, err := j.takeThis(ctx, "done", "w")
			if err == nil {
				err = finish(rec)
			}
			if err != nil {
				t.Fatal(err)
			}
			mustCreate(t, j, &message.RunRequest{ID: "waits"})
			if harm != nil {
				harm(t, l)
			} else {
				e.Kill()
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				e.Start()
			}
			eventually(ctx, t, "the records are there", func() bool {
				_, err := l.get(ctx, "waits")
				_, err2 := l.get(ctx, "done")
				return err == nil && err2 == nil
			})
			eventually(ctx, t, "all streams are there", func() bool {
				for _, stream := range message.Streams() {
					if _, err := l.js.Stream(ctx, stream); err != nil {
						return false
					}
				}
				return l.Fault() == nil
			})
			go j.Reconcile(ctx)
			go func() {
				for rec, _, _, err := j.Take(ctx, "w"); err == nil; rec, _, _, err = j.Take(ctx, "w") {
					if err := finish(rec); err != nil {
						t.Error(err)
					}
				}
			}()
			other, _ := durable(t, e, "b")
			mustCreate(t, other, &message.RunRequest{ID: "later"})
			for _, id := range []string{"done", "waits", "later"} { // this daemon remembers what "waits" asks for
				eventually(ctx, t, id+" is done", func() bool {
					rec, err := l.get(ctx, id)
					return err == nil && rec.State == message.Done
				})
			}
			eventually(ctx, t, "the daemons hear each other", func() bool {
				return l.machines.Heard("b", time.Time{}) && storeOf(other).machines.Heard("a", time.Time{})
			})
		})
	}
}

// TestFaultOfAServerWithoutJetStream checks that a server that is up and keeps no jobs is a fault of the store until it
// keeps jobs again.
func TestFaultOfAServerWithoutJetStream(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		e := bubble.Start(t, natsserver.Inside(dir))
		conf, err := os.ReadFile(e.Conf)
		if err != nil {
			t.Fatal(err)
		}
		j, _ := durable(t, e, "a")
		l, ctx := storeOf(j), wiretest.Context(t)
		if err := l.Fault(); err != nil {
			t.Errorf("a store that is well has the fault %v", err)
		}
		restart := func(conf string) {
			e.Kill()
			if err := os.WriteFile(e.Conf, []byte(conf), 0o600); err != nil {
				t.Fatal(err)
			}
			e.Start()
		}
		with, _, found := strings.Cut(string(conf), "jetstream")
		if !found {
			t.Fatalf("the server has no JetStream: %s", conf)
		}
		restart(with)
		eventually(ctx, t, "there is a fault though the server is up", func() bool { return l.Up() && l.Fault() != nil })
		restart(string(conf))
		eventually(ctx, t, "the fault is gone", func() bool { return l.Up() && l.Fault() == nil })
	})
}
