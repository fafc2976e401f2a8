package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestRankLost checks that a job whose rank is killed, or stopped so that its worker kills it, goes on in new processes
// of the same worker, in the same attempt, and that a warning names the process.
func TestRankLost(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	t.Run("Killed", func(t *testing.T) { rankLost(t, program, syscall.SIGKILL, "it was killed by SIGKILL") })
	t.Run("Stopped", func(t *testing.T) {
		rankLost(t, program, syscall.SIGSTOP, "it has said nothing for 5s: it did not exit when its leader had gone",
			"--patience", "5s")
	})
}

func rankLost(t *testing.T, program string, signal syscall.Signal, want string, args ...string) {
	s := harness.Start(t, program, "", append([]string{"--placement", "children"}, args...)...)
	c := s.Client()
	ctx, end := context.WithTimeout(context.Background(), harness.Patience)
	defer end()
	long := &message.RunRequest{ID: "k", Workflow: harness.DemoFlow(t, 60), Plan: "ulysses=2"}
	if _, err := client.Submit(ctx, c, long); err != nil {
		t.Fatal(err)
	}
	s.Until("a worker is up", func() bool { return len(s.WorkerPIDs()) > 0 })
	worker := s.WorkerPIDs()[0]
	drawing := make(chan struct{})
	begin := sync.OnceFunc(func() { close(drawing) })
	go func() { // until the job ends
		_, _ = client.Follow(ctx, c, "k", 0, false, &client.Collector{Event: func(ev message.Event) {
			if ev.Type == message.EventProgress {
				begin()
			}
		}})
	}()
	s.Until("the ranks draw", func() bool {
		select {
		case <-drawing:
			return true
		default:
			return false
		}
	})
	var ranks []int
	s.Until("two ranks run", func() bool {
		ranks = harness.Children(worker)
		return len(ranks) == 2
	})
	if err := syscall.Kill(ranks[1], signal); err != nil {
		t.Fatal(err)
	}
	sent := time.Now()
	s.Until("the rank ends", func() bool { return !slices.Contains(harness.Children(worker), ranks[1]) })
	ended := time.Now()
	s.Until("two other ranks run", func() bool {
		now := harness.Children(worker)
		return len(now) == 2 && !slices.Contains(now, ranks[0]) && !slices.Contains(now, ranks[1])
	})
	t.Logf("%v after the %v the rank has ended, %v later there are others", ended.Sub(sent), signal, time.Since(ended))
	rec := s.WaitState(c, "k", message.Done)
	warnings := fmt.Sprint(rec.Metrics["warnings"])
	if rec.Attempt != 1 || !strings.Contains(warnings, want) ||
		!strings.Contains(warnings, fmt.Sprintf("pid %d", ranks[1])) {
		t.Errorf("attempt %d, warnings %s; want one that names process %d and %q", rec.Attempt, warnings, ranks[1], want)
	}
	if evaluations, resumed := sampling(t, rec); resumed < 1 || evaluations+resumed != 60 {
		t.Errorf("%d evaluations and %d resumed, want 60 and some of them", evaluations, resumed)
	}
	if got := s.WorkerPIDs(); len(got) != 1 {
		t.Errorf("workers were started %d times, want once", len(got))
	}
}
