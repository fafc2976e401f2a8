package serve_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/ipc/worker"
	"patchbay/node/classes"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// TestHandleLeases checks that, over a carrier, an unused handle expires with its lease and gives the documented code,
// while a used one and one with a longer lease stay. The daemon forgets which worker had the expired ones.
func TestHandleLeases(t *testing.T) {
	began := time.Now()
	var passed atomic.Int64 // on the clock, nanoseconds
	now := func() time.Time { return began.Add(time.Duration(passed.Load())) }
	model := []graph.Slot{{Name: "MODEL", Type: "MODEL"}}
	runner, err := graph.NewRunner(graph.Config{Now: now, Catalogue: classes.All(
		graph.Class{
			Name: "Make", Outputs: model,
			Run: func(*graph.Call) ([]any, error) { return []any{&value.Model{Name: "m"}}, nil },
		},
		graph.Class{
			Name: "Use", Inputs: []graph.Input{{Name: "model", Type: "MODEL"}},
			Outputs: []graph.Slot{{Name: "STRING", Type: "STRING"}}, Run: func(*graph.Call) ([]any, error) {
				return []any{"used"}, nil
			},
		},
	)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runner.Close)
	r := ipctest.NewRig(t, jobs.Config{Now: now}, jobs.OutputsConfig{}, worker.NewLocal("a", runner, 0),
		&ipctest.Fake{Label: "b"})
	c, _ := socketRig(t, r)
	ctx := wiretest.Context(t)
	maker := func(lease time.Duration) string {
		t.Helper()
		for range 2 { // the executors take turns
			var out message.ExecReply
			err := client.AskOne(ctx, c, message.VerbExec, "",
				&message.ExecRequest{Class: "Make", LeaseMS: int(lease.Milliseconds())}, &out)
			if err != nil {
				continue
			}
			h, _ := out.Outputs[0].(*pyjson.Object)
			id, _ := h.Get(message.HandleKey)
			if until, _ := h.Get("expires"); until != now().Add(lease).UnixMilli() || out.Worker != "a" {
				t.Errorf("the handle %v of %s, want one until %d", h, out.Worker, now().Add(lease).UnixMilli())
			}
			return id.(string)
		}
		t.Fatal("no worker makes a handle")
		return ""
	}
	use := func(id string) error {
		return client.AskOne(ctx, c, message.VerbExec, "",
			&message.ExecRequest{Class: "Use", Inputs: pyjson.NewObject("model", pyjson.NewObject(message.HandleKey, id))},
			&message.ExecReply{})
	}
	expired := func(err error) bool {
		var e *fault.Error
		return errors.As(err, &e) && e.Public() == fault.NoHandle && e.Status() == 404 && !e.Retryable()
	}
	unused, used, long := maker(time.Minute), maker(time.Minute), maker(time.Hour)
	for range 5 {
		passed.Add(int64(40 * time.Second))
		if err := use(used); err != nil {
			t.Fatalf("a handle that is used every 40 s of its minute, after %s: %v", time.Duration(passed.Load()), err)
		}
	}
	if err := use(unused); !expired(err) {
		t.Errorf("a handle after its lease: got %v, want 404 %s", err, fault.NoHandle)
	}
	if n := len(runner.Handles()); n != 2 {
		t.Errorf("the worker has %d handles, want the used one and the long one", n)
	}
	next := maker(time.Minute) // the daemon forgets when it learns of another
	known, count := r.Service.Knows(unused)
	if known || count != 3 {
		t.Errorf("the daemon knows of %d handles, the gone one among them: %v; want three others", count, known)
	}
	for _, id := range []string{used, long, next} {
		if err := use(id); err != nil {
			t.Errorf("another handle: %v", err)
		}
	}
	passed.Add(int64(30 * time.Minute))
	for _, id := range []string{used, next, unused} {
		if err := use(id); !expired(err) {
			t.Errorf("half an hour later: got %v, want 404 %s", err, fault.NoHandle)
		}
	}
	if err := use(long); err != nil {
		t.Errorf("a lease of an hour after half of it: %v", err)
	}
	last := maker(time.Minute)
	_, count = r.Service.Knows(last)
	if n := len(runner.Handles()); n != 2 || count != 2 {
		t.Errorf("the worker has %d handles and the daemon knows of %d, want %s and %s", n, count, long, last)
	}
}
