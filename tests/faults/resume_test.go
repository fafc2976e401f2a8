package faults

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/node/pyjson"
	"patchbay/tests/harness"
)

// TestResume kills the worker in the middle of a picture, and in the next attempt the daemon: each attempt computes
// what is missing, at most one evaluation of it again, and the picture is that of a run that was left alone. What was
// kept for that is removed with the job, in whatever way that ends, and that of jobs that are not open when a daemon
// starts.
func TestResume(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	const steps = 50
	flow := harness.DemoFlow(t, steps)
	want := drawn(t, harness.Start(t, program, "", "--queue", "memory"), flow)

	s := harness.Start(t, program, "", "--sync", "interval")
	kept := func(job string) bool {
		_, err := os.Stat(filepath.Join(s.Store, "resume", job))
		return err == nil
	}
	worker := s.Worker()
	release := harness.Throttle(t, worker)
	harness.Submit(t, s.Client(), "k", flow)
	reach(t, s, "k", 1, 30)
	if !kept("k") {
		t.Error("nothing is kept of a job that runs")
	}
	kill(t, worker)
	release()
	s.Until("there is another worker", func() bool { return s.Worker() != worker })
	release = harness.Throttle(t, s.Worker())
	reach(t, s, "k", 2, 40)
	for _, gone := range []string{"unknown", "ended"} {
		if err := os.MkdirAll(filepath.Join(s.Store, "resume", gone), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill()
	release()
	s.Launch()
	if kept("unknown") || kept("ended") {
		t.Error("what was kept for jobs that are not open outlives the start of a daemon")
	}
	s.WaitFiles(s.Client(), "k")
	rec := s.WaitState(s.Client(), "k", message.Done)
	if got := pictureOf(t, s, "k"); !bytes.Equal(got, want) {
		t.Error("the picture differs from that of a run that was left alone")
	}
	last, resumed := map[int]int64{}, map[int]int64{}
	eachStep(t, s, "k", func(ev message.Event, n int64) {
		if ev.Data["resumed"] == true {
			if last[ev.Attempt] != 0 {
				t.Errorf("attempt %d is resumed at step %d after step %d", ev.Attempt, n, last[ev.Attempt])
			}
			resumed[ev.Attempt] = n
		}
		last[ev.Attempt] = n
	})
	if rec.Attempt != 3 || resumed[2] < last[1] || resumed[2] > last[1]+1 || resumed[3] < last[2] || resumed[1] != 0 {
		t.Errorf("last steps of %d attempts: %v, resumed at %v; want each to go on where the one before was", rec.Attempt,
			last, resumed)
	}
	evaluations, before := sampling(t, rec)
	if before != resumed[3] || evaluations != steps-before {
		t.Errorf("the last attempt computed %d evaluations and resumed %d, want %d and %d", evaluations, before,
			steps-resumed[3], resumed[3])
	}
	t.Logf("last steps %v, resumed at %v", last, resumed)
	s.Until("what was kept is removed with the job", func() bool { return !kept("k") })

	release = harness.Throttle(t, s.Worker())
	harness.Submit(t, s.Client(), "c", strings.Replace(flow, `"seed": 1`, `"seed": 2`, 1))
	reach(t, s, "c", 1, 10)
	if !kept("c") {
		t.Error("nothing is kept of a job that runs")
	}
	harness.Cancel(t, s.Client(), "c")
	release()
	s.WaitState(s.Client(), "c", message.Cancelled)
	s.Until("what was kept is removed with a cancelled job", func() bool { return !kept("c") })
}

// TestResumeOff checks that nothing is kept with a queue in memory, where it is switched off, and where the folder
// cannot be written to; the job is done all the same.
func TestResumeOff(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	flow := harness.DemoFlow(t, 3)
	var want []byte
	for _, args := range [][]string{{"--queue", "memory"}, {"--sync", "interval", "--resume-bytes", "off"}} {
		off := harness.Start(t, program, "", args...)
		got := drawn(t, off, flow)
		if want == nil {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%v: the picture differs", args)
		}
		if _, err := os.Stat(filepath.Join(off.Store, "resume")); err == nil {
			t.Errorf("%v keeps something", args)
		}
	}
	store := filepath.Join(t.TempDir(), "store")
	if err := os.MkdirAll(store, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store, "resume"), nil, 0o600); err != nil { // a file where the folder should be
		t.Fatal(err)
	}
	bad := harness.StartIn(t, program, "", harness.DemoModels(t), store, "--sync", "interval")
	if got := drawn(t, bad, flow); !bytes.Equal(got, want) {
		t.Error("with a folder that cannot be written to the picture differs")
	}
	bad.Logged("the evaluations of a run are not kept; should its worker die, they are computed again", "not a directory")
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// drawn runs a workflow and returns its picture.
func drawn(t *testing.T, s *harness.Server, flow string) []byte {
	t.Helper()
	harness.Submit(t, s.Client(), "quiet", flow)
	s.WaitFiles(s.Client(), "quiet")
	return pictureOf(t, s, "quiet")
}

// pictureOf reads the only file of a job.
func pictureOf(t *testing.T, s *harness.Server, job string) []byte {
	t.Helper()
	rec, err := harness.Status(s.Client(), job)
	if err != nil || len(rec.Outputs) != 1 {
		t.Fatalf("job %s has %d files (%v), want one", job, len(rec.Outputs), err)
	}
	b, err := os.ReadFile(filepath.Join(s.Out, rec.Outputs[0].Subfolder, rec.Outputs[0].Filename))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// eachStep calls f for the progress events of a job that has ended.
func eachStep(t *testing.T, s *harness.Server, job string, f func(ev message.Event, step int64)) {
	t.Helper()
	if _, err := client.Follow(context.Background(), s.Client(), job, 0, false, &client.Collector{
		Event: func(ev message.Event) {
			if n, ok := ev.Data["value"].(int64); ok && ev.Type == message.EventProgress {
				f(ev, n)
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
}

// reach waits until an attempt has taken so many steps.
func reach(t *testing.T, s *harness.Server, job string, attempt int, step int64) {
	t.Helper()
	ctx, end := context.WithTimeout(context.Background(), harness.Patience)
	defer end()
	there := make(chan struct{})
	reached := sync.OnceFunc(func() { close(there) })
	c := s.Client()
	go func() {
		_, _ = client.Follow(ctx, c, job, 0, false, &client.Collector{Event: func(ev message.Event) {
			if n, _ := ev.Data["value"].(int64); ev.Type == message.EventProgress && ev.Attempt == attempt && n >= step {
				reached()
			}
		}})
	}()
	select {
	case <-there:
	case <-time.After(harness.Patience):
		t.Fatalf("attempt %d of %s did not reach step %d", attempt, job, step)
	}
}

// sampling returns how many evaluations the only sampling run of a job computed and how many it resumed.
func sampling(t *testing.T, rec message.Record) (evaluations, resumed int64) {
	t.Helper()
	list, _ := rec.Metrics["stats"].([]any)
	if len(list) != 1 {
		t.Fatalf("metrics %v: want one sampling run", rec.Metrics)
	}
	switch run := list[0].(type) {
	case *pyjson.Object:
		evaluations, _ = run.At("evaluations").(int64)
		resumed, _ = run.At("resumed").(int64)
	default:
		t.Fatalf("stats of type %T", run)
	}
	return evaluations, resumed
}
