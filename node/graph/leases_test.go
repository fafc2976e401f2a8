package graph

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/fault"
	"patchbay/node/value"
)

// TestLeasesEndByThemselves checks that the value of a handle becomes garbage when its lease expires, even without
// calls to the runner, while one with a longer lease stays.
func TestLeasesEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := NewRunner(Config{Catalogue: NewCatalogue([]Class{
			{
				Name: "MakeModel", Outputs: Slots("MODEL"),
				Run: func(*Call) ([]any, error) { return []any{&value.Model{Name: "m"}}, nil },
			},
			{Name: "UseModel", Inputs: []Input{Bare("model", "MODEL")}, Run: func(c *Call) ([]any, error) {
				_ = Arg[*value.Model](c, "model")
				return nil, nil
			}},
		})})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		made := func(lease time.Duration) string {
			out, err := r.Exec(context.Background(), ExecRequest{Class: "MakeModel", Want: []int{0}, Lease: lease}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return out.Outputs[0].(Handle).ID
		}
		short, long := made(20*time.Millisecond), made(time.Hour)
		var freed, longFreed atomic.Bool
		watch := func(id string, flag *atomic.Bool) {
			r.handles.mu.Lock()
			defer r.handles.mu.Unlock()
			runtime.AddCleanup(r.handles.held[id].value.(*value.Model), func(flag *atomic.Bool) { flag.Store(true) }, flag)
		}
		watch(short, &freed)
		watch(long, &longFreed)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(r.handles.held); n != 1 {
			t.Fatalf("%d handles are held a second after a lease of 20 ms has ended, want one", n)
		}
		for !freed.Load() { // cleanups run outside the bubble of synctest
			runtime.GC()
		}
		if longFreed.Load() {
			t.Error("the value of a handle with a lease of an hour is gone")
		}
		for id, want := range map[string]string{short: fault.UnknownHandle, long: ""} {
			_, err := r.Exec(context.Background(), ExecRequest{
				Class:  "UseModel",
				Inputs: map[string]any{"model": Handle{ID: id}},
			}, nil)
			var f *fault.Error
			if errors.As(err, &f); want == "" && err != nil || want != "" && (f == nil || f.Code != want || f.Field != "model") {
				t.Errorf("handle %s: got %v, want %q", id, err, want)
			}
		}
		if n := r.FreeHandles(); n != 1 || r.handles.alarm != nil {
			t.Errorf("%d handles were left, the alarm is %v; want one, and none after it", n, r.handles.alarm)
		}
	})
}
