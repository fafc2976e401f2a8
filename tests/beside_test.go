package tests

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestJobsBesideEachOther checks that, with places to share, waiting jobs run side by side in one worker and make the
// pictures that they make alone, also with ranks in their own processes. Cancelling one leaves the others alone, and
// when the worker is killed all are done in their second attempt.
func TestJobsBesideEachOther(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	alone := harness.Start(t, program, "")
	s := harness.Start(t, program, "", "--schedule", "each", "--ranks", "3")
	children := harness.Start(t, program, "", "--schedule", "each", "--ranks", "2", "--placement", "children")
	const jobs = 5
	got, errs := make([][]byte, 2*jobs), make([]error, 2*jobs)
	for k, on := range []*harness.Server{s, children} {
		var all sync.WaitGroup
		for i := range jobs {
			all.Go(func() { got[k*jobs+i], errs[k*jobs+i] = on.Picture(fmt.Sprint("beside", i), "", i) })
		}
		all.Wait()
	}
	for i := range jobs {
		want, err := alone.Picture(fmt.Sprint("alone", i), "", i)
		for k := i; k < len(got); k += jobs {
			if err != nil || errs[k] != nil {
				t.Fatal(err, errs[k])
			}
			if !bytes.Equal(got[k], want) || len(want) == 0 {
				t.Errorf("the picture of seed %d is another one than alone (%d)", i, k)
			}
		}
	}
	c := s.Client()
	release := harness.Throttle(t, s.Worker()) // none ends before all have made a step
	ids := []string{"a", "b", "c"}
	moving := make(chan string, 64)
	for _, id := range ids {
		flow := harness.DemoFlow(t, map[string]int{"a": 60, "b": 5000, "c": 61}[id]) // b does not end before it is cancelled
		if _, err := client.Submit(t.Context(), c, &message.RunRequest{ID: id, Workflow: flow}); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = client.Follow(context.Background(), s.Client(), id, 0, false, &client.Collector{
				Event: func(ev message.Event) {
					if ev.Type == message.EventProgress {
						select {
						case moving <- id:
						default:
						}
					}
				},
			})
		}()
	}
	for seen := map[string]bool{}; len(seen) < len(ids); {
		seen[<-moving] = true
	}
	if _, _, err := client.Cancel(t.Context(), c, "b"); err != nil {
		t.Fatal(err)
	}
	s.WaitState(c, "b", message.Cancelled)
	pids := s.WorkerPIDs()
	if len(pids) != 1 {
		t.Fatalf("there are the workers %v, want one", pids)
	}
	_ = syscall.Kill(pids[0], syscall.SIGKILL)
	release()
	for _, id := range []string{"a", "c"} {
		if rec := s.WaitState(c, id, message.Done); rec.Attempt != 2 {
			t.Errorf("%s was done in attempt %d, want 2: %v", id, rec.Attempt, rec.Causes)
		}
	}
}
