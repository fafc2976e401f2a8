package ipc

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// childRig is a rig whose executor is a supervised fake worker process.
func childRig(t testing.TB, tune func(*ChildConfig)) (*rig, *Child) {
	t.Helper()
	cfg := ChildConfig{Name: "worker 0", Command: workerCommand, Log: zerolog.Nop(), BackOff: 10 * time.Millisecond}
	if tune != nil {
		tune(&cfg)
	}
	child := NewChild(cfg)
	r := newRig(t, JobsConfig{}, ShelfConfig{}, child)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = child.Supervise(ctx); close(done) }()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return r, child
}

func TestWorkerRunsJobs(t *testing.T) {
	r, child := childRig(t, nil)
	c := dialRig(t, r)
	evs, col, end := runJob(t, c, &RunRequest{Workflow: graph("Step 2", "Picture 900000"), Preview: true})
	want := "queued execution_start executing progress progress executing executed metrics execution_success"
	if got := strings.Join(types(evs), " "); got != want {
		t.Errorf("got events %s, want %s", got, want)
	}
	if end.Type != EventSuccess || len(col.Files) != 1 || !bytes.Equal(col.Files[0].Data, fakePicture("2", 900000).Data) {
		t.Errorf("ended with %+v and %d files", end, len(col.Files))
	}
	pid := child.PID()
	_, _, end = runJob(t, c, &RunRequest{Workflow: graph("Fail")})
	if end.Error == nil || end.Error.Code != ErrOutOfMemory || end.Error.Node != "1" {
		t.Errorf("a failure in the worker: %+v", end.Error)
	}
	_, _, end = runJob(t, c, &RunRequest{Workflow: graph("Panic")})
	if end.Error == nil || end.Error.Code != ErrInternal || child.PID() != pid {
		t.Errorf("a panic in the worker: %+v; worker %d, was %d", end.Error, child.PID(), pid)
	}
}

// TestALaterAttemptRunsAnew: a worker remembers jobs, but a retry must not be told how the attempt before it ended.
func TestALaterAttemptRunsAnew(t *testing.T) {
	_, child := childRig(t, nil)
	ctx := within(t, 20*time.Second)
	if err := child.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	req := &RunRequest{ID: "again", Workflow: graph("Wait 300", "Picture 3")}
	first, cancel := context.WithCancel(ctx)
	_, err := child.Run(first, Task{req, 1}, Sink{Event: func(Event) { cancel() }})
	if code(err) != ErrCancelled {
		t.Fatalf("the first attempt ended with %v, want %s", err, ErrCancelled)
	}
	for range 2 { // the second time its result is there
		out, err := child.Run(ctx, Task{req, 2}, Sink{Event: func(Event) {}})
		if err != nil || len(out.Files) != 1 {
			t.Fatalf("the second attempt: %+v, %v", out, err)
		}
	}
}

func TestJobIsRetriedWhenItsWorkerDies(t *testing.T) {
	r, child := childRig(t, nil)
	c := dialRig(t, r)
	if err := child.Ready(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	pid := child.PID()
	evs, _, end := runJob(t, c, &RunRequest{ID: "once", Workflow: graph("Die 1", "Picture 3")})
	var retry *Event
	for i := range evs {
		if evs[i].Type == EventRetrying {
			retry = &evs[i]
		}
	}
	if end.Type != EventSuccess || end.Attempt != 2 || retry == nil {
		t.Fatalf("got events %v, terminal %+v", types(evs), end)
	}
	if !strings.Contains(retry.Error.Message, "SIGKILL") || !strings.Contains(retry.Error.Details, "the fake dies") {
		t.Errorf("the cause is not named: %+v", retry.Error)
	}
	if child.PID() == pid {
		t.Error("the worker has its old process id")
	}
	_, _, end = runJob(t, c, &RunRequest{ID: "always", Workflow: graph("Die")})
	if end.Type != EventError || end.Error.Code != ErrWorkerLost || end.Attempt != 3 {
		t.Errorf("a job that always kills its worker: %+v %+v", end, end.Error)
	}
	_, _, end = runJob(t, c, &RunRequest{Workflow: graph("Picture 1")})
	if end.Type != EventSuccess {
		t.Errorf("after that: %+v", end)
	}
}

func TestKillFromOutside(t *testing.T) {
	r, child := childRig(t, nil)
	c := dialRig(t, r)
	ctx := within(t, 20*time.Second)
	if _, err := Submit(ctx, c, &RunRequest{ID: "k", Workflow: graph("Wait 400")}); err != nil {
		t.Fatal(err)
	}
	waitState(t, r.jobs, "k", Running)
	if err := syscall.Kill(child.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if rec := waitState(t, r.jobs, "k", Done); rec.Attempt != 2 {
		t.Errorf("got attempt %d, want 2", rec.Attempt)
	}
}

// TestJobWhoseWorkerIsGoneNamesItsEnd: a worker that dies between the choice of it and the start of a job costs the job an attempt, whose cause is
// why the worker ended.
func TestJobWhoseWorkerIsGoneNamesItsEnd(t *testing.T) {
	_, child := childRig(t, func(c *ChildConfig) { c.BackOff = time.Hour })
	ctx := within(t, 20*time.Second)
	if err := child.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the worker is missed", func() bool { return child.PID() == 0 })
	_, err := child.Run(ctx, Task{&RunRequest{ID: "late", Workflow: graph("Picture 3")}, 1}, Sink{Event: func(Event) {}})
	if code(err) != ErrWorkerLost || !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("run: got %v, want %s with the signal", err, ErrWorkerLost)
	}
	if _, err := child.Free(ctx, &FreeRequest{}); code(err) != ErrWorkerLost || !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("free: got %v, want %s with the signal", err, ErrWorkerLost)
	}
}

func TestCancelledJobThatDoesNotStopCostsItsWorker(t *testing.T) {
	r, child := childRig(t, func(c *ChildConfig) { c.Grace = 100 * time.Millisecond })
	c := dialRig(t, r)
	ctx := within(t, 20*time.Second)
	if _, err := Submit(ctx, c, &RunRequest{ID: "h", Workflow: graph("Hang")}); err != nil {
		t.Fatal(err)
	}
	cur, err := r.jobs.Follow(ctx, "h", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	for kind := ""; kind != "executing"; { // a job that has not reached the worker yet costs nothing
		it, err := cur.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		kind = it.event.Type
	}
	pid := child.PID()
	if _, _, err := Cancel(ctx, c, "h"); err != nil {
		t.Fatal(err)
	}
	waitState(t, r.jobs, "h", Cancelled)
	_, _, end := runJob(t, c, &RunRequest{Workflow: graph("Picture 1")})
	if end.Type != EventSuccess || child.PID() == pid {
		t.Errorf("got %+v from worker %d, the old one was %d", end, child.PID(), pid)
	}
}

func TestFrozenWorkerIsReplaced(t *testing.T) {
	r, child := childRig(t, func(c *ChildConfig) { c.Beat, c.Silence = 20*time.Millisecond, 300*time.Millisecond })
	c := dialRig(t, r)
	ctx := within(t, 20*time.Second)
	if _, err := Submit(ctx, c, &RunRequest{ID: "f", Workflow: graph("Wait 1000")}); err != nil {
		t.Fatal(err)
	}
	waitState(t, r.jobs, "f", Running)
	if err := syscall.Kill(child.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	rec := waitState(t, r.jobs, "f", Done)
	if rec.Attempt != 2 {
		t.Errorf("got attempt %d, want 2", rec.Attempt)
	}
}

func TestCommandThatIsNoWorker(t *testing.T) {
	for name, args := range map[string][]string{"prints": {"sh", "-c", "echo hello; sleep 60"}, "exits": {"false"}, "is not there": {"/nonexistent/program"}} {
		child := NewChild(ChildConfig{Name: name, Log: zerolog.Nop(), Start: 2 * time.Second, Command: func() *exec.Cmd { return exec.Command(args[0], args[1:]...) }})
		began := time.Now()
		if _, err := child.start(within(t, 10*time.Second)); err == nil {
			t.Errorf("%s: started", name)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
}

// TestWorkerOnPlainPipes is a host that starts a worker itself.
func TestWorkerOnPlainPipes(t *testing.T) {
	cmd := workerCommand()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := NewFrameClient(out, in, in.Close)
	_, col, end := runJob(t, c, &RunRequest{Workflow: graph("Picture 700000")})
	if end.Type != EventSuccess || len(col.Files) != 1 || len(col.Files[0].Data) != 700000 {
		t.Errorf("got %+v, %d files", end, len(col.Files))
	}
	// A job that is deaf must not keep the worker alive when its host is gone.
	if _, err := c.Ask(within(t, time.Second), VerbRun, "", &RunRequest{Workflow: graph("Hang")}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil && !strings.Contains(err.Error(), "closed") {
		t.Error(err)
	}
	<-c.Gone()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the worker ended with %v", err)
	}
	if took := time.Since(began); took > 30*time.Second { // one second is promised; a busy machine may take longer
		t.Errorf("the worker was there for %s after its stdin had closed, want about a second", took)
	}
}

// TestWorkerThatNeverStartsIsGivenUp: five lives without an answer end the supervision with the cause, one that has answered once is restarted for ever.
func TestWorkerThatNeverStartsIsGivenUp(t *testing.T) {
	lives := 0
	child := NewChild(ChildConfig{Name: "worker 0", Log: zerolog.Nop(), BackOff: time.Millisecond, Command: func() *exec.Cmd {
		lives++
		return exec.Command("sh", "-c", "echo level avx9 is not known >&2; exit 3")
	}})
	err := child.Supervise(context.Background())
	if err == nil || !strings.Contains(err.Error(), "does not start") || !strings.Contains(err.Error(), "code 3") || !strings.Contains(err.Error(), "avx9") {
		t.Errorf("got %v, want an error that names the exit code and what the worker said", err)
	}
	if lives != 5 {
		t.Errorf("%d lives, want 5", lives)
	}
}
