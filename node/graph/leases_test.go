package graph

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"patchbay/node/fault"
	"patchbay/node/value"
)

// TestLeasesEndByThemselves checks that the value of a handle becomes garbage when its lease expires, even without
// calls to the runner, while one with a longer lease stays.
func TestLeasesEndByThemselves(t *testing.T) {
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
	freed, stays := make(chan struct{}), make(chan struct{})
	r.handles.mu.Lock() // keep the short lease from expiring meanwhile
	if e := r.handles.held[short]; e != nil {
		runtime.AddCleanup(e.value.(*value.Model), func(c chan struct{}) { close(c) }, freed)
	} else {
		close(freed) // it has expired already
	}
	runtime.AddCleanup(r.handles.held[long].value.(*value.Model), func(c chan struct{}) { close(c) }, stays)
	r.handles.mu.Unlock()
	for end := time.Now().Add(2 * time.Minute); ; {
		runtime.GC()
		select {
		case <-freed:
		case <-time.After(time.Millisecond):
			if time.Now().After(end) {
				t.Fatal("the value of a handle is held 2 minutes after its lease of 20 ms")
			}
			continue
		}
		break
	}
	select {
	case <-stays:
		t.Error("the value of a handle with a lease of an hour is gone")
	default:
	}
	for id, want := range map[string]string{short: fault.CodeUnknownHandle, long: ""} {
		_, err := r.Exec(context.Background(), ExecRequest{
			Class:  "UseModel",
			Inputs: map[string]any{"model": Handle{ID: id}},
		}, nil)
		var f *fault.Failure
		if errors.As(err, &f); want == "" && err != nil || want != "" && (f == nil || f.Code != want || f.Field != "model") {
			t.Errorf("handle %s: got %v, want %q", id, err, want)
		}
	}
	if n := r.FreeHandles(); n != 1 || r.handles.alarm != nil {
		t.Errorf("%d handles were left, the alarm is %v; want one, and none after it", n, r.handles.alarm)
	}
}
