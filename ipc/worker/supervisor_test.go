package worker_test

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/ipc/worker"
)

func TestWorkerRunsJobs(t *testing.T) {
	r, child := ipctest.ChildRig(t, nil)
	c := ipctest.DialRig(t, r)
	evs, col, end := ipctest.RunJob(t, c, &message.RunRequest{
		Workflow: messagetest.Graph("Step 2", "Picture 900000"),
		Preview:  true,
	})
	want := "queued execution_start executing progress progress executing executed metrics executing execution_success"
	if got := strings.Join(ipctest.Types(evs), " "); got != want {
		t.Errorf("got events %s, want %s", got, want)
	}
	if end.Type != message.EventSuccess || len(col.Files) != 1 ||
		!bytes.Equal(col.Files[0].Data, messagetest.Picture("2", 900000).Data) {
		t.Errorf("ended with %+v and %d files", end, len(col.Files))
	}
	pid := child.PID()
	_, _, end = ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Fail")})
	if end.Error == nil || end.Error.Public() != fault.OutOfMemory || end.Error.Node != "1" {
		t.Errorf("a failure in the worker: %+v", end.Error)
	}
	_, _, end = ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Panic")})
	if end.Error == nil || end.Error.Public() != fault.Internal || child.PID() != pid {
		t.Errorf("a panic in the worker: %+v; worker %d, was %d", end.Error, child.PID(), pid)
	}
}

// TestALaterAttemptRunsAnew checks that a job that was stopped in a worker is gone from there: the process lives, and
// the same id runs again, as often as it is asked to.
func TestALaterAttemptRunsAnew(t *testing.T) {
	_, child := ipctest.ChildRig(t, func(c *worker.ChildConfig) { c.Grace = time.Minute })
	ctx := wiretest.Context(t)
	if err := child.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	pid := child.PID()
	req := &message.RunRequest{ID: "again", Workflow: messagetest.Graph("Wait 600000", "Picture 3")}
	first, cancel := context.WithCancel(ctx)
	_, err := child.Run(first, jobs.Task{Req: req, Attempt: 1}, jobs.Sink{Event: func(message.Event) { cancel() }})
	if wiretest.Code(err) != fault.Cancelled {
		t.Fatalf("the first attempt ended with %v, want %s", err, fault.Cancelled)
	}
	if child.PID() != pid {
		t.Fatal("the worker was killed: it did not stop the job")
	}
	req.Workflow = messagetest.Graph("Wait 1", "Picture 3")
	for range 2 {
		out, err := child.Run(ctx, jobs.Task{Req: req, Attempt: 2}, jobs.Sink{Event: func(message.Event) {}})
		if err != nil || len(out.Files) != 1 {
			t.Fatalf("the second attempt: %+v, %v", out, err)
		}
	}
}

func TestJobIsRetriedWhenItsWorkerDies(t *testing.T) {
	r, child := ipctest.ChildRig(t, nil)
	c := ipctest.DialRig(t, r)
	if err := child.Ready(wiretest.Context(t)); err != nil {
		t.Fatal(err)
	}
	pid := child.PID()
	evs, _, end := ipctest.RunJob(t, c, &message.RunRequest{ID: "once", Workflow: messagetest.Graph("Die 1", "Picture 3")})
	var retry *message.Event
	for i := range evs {
		if evs[i].Type == message.EventRetrying {
			retry = &evs[i]
		}
	}
	if end.Type != message.EventSuccess || end.Attempt != 2 || retry == nil {
		t.Fatalf("got events %v, terminal %+v", ipctest.Types(evs), end)
	}
	if !strings.Contains(retry.Error.Text, "SIGKILL") || !strings.Contains(retry.Error.Details, "the fake dies") {
		t.Errorf("the cause is not named: %+v", retry.Error)
	}
	if child.PID() == pid {
		t.Error("the worker has its old process id")
	}
	_, _, end = ipctest.RunJob(t, c, &message.RunRequest{ID: "always", Workflow: messagetest.Graph("Die")})
	if end.Type != message.EventError || end.Error.Public() != fault.WorkerLost || end.Attempt != 3 {
		t.Errorf("a job that always kills its worker: %+v %+v", end, end.Error)
	}
	_, _, end = ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Picture 1")})
	if end.Type != message.EventSuccess {
		t.Errorf("after that: %+v", end)
	}
}

func TestKillFromOutside(t *testing.T) {
	r, child := ipctest.ChildRig(t, nil)
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	if _, err := client.Submit(ctx, c, &message.RunRequest{
		ID:       "k",
		Workflow: messagetest.Graph("Wait 600000"),
	}); err != nil {
		t.Fatal(err)
	}
	ipctest.WaitState(t, r.Jobs, "k", message.Running)
	if err := syscall.Kill(child.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if rec := ipctest.CancelInAttempt(t, r.Jobs, c, "k", 2); rec.Attempt != 2 {
		t.Errorf("got attempt %d, want 2", rec.Attempt)
	}
}

// TestJobWaitsForTheNextWorker checks that a worker that dies between being chosen and starting a job costs the job no
// attempt, and that a single node requested then gets the reason why the worker ended.
func TestJobWaitsForTheNextWorker(t *testing.T) {
	ctx := wiretest.Context(t)
	dead := func(pause time.Duration) *worker.Child {
		_, child := ipctest.ChildRig(t, func(c *worker.ChildConfig) { c.BackOff = pause })
		if err := child.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		pid := child.PID()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for child.PID() == pid {
			if ctx.Err() != nil {
				t.Fatal("the worker is not missed")
			}
			time.Sleep(time.Millisecond)
		}
		return child
	}
	_, err := dead(time.Hour).Exec(ctx, &message.ExecRequest{Class: "Picture"})
	if wiretest.Code(err) != fault.WorkerLost || !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("a node: got %v, want %s with the signal", err, fault.WorkerLost)
	}
	job := jobs.Task{Req: &message.RunRequest{ID: "late", Workflow: messagetest.Graph("Picture 3")}, Attempt: 1}
	out, err := dead(100*time.Millisecond).Run(ctx, job, jobs.Sink{Event: func(message.Event) {}})
	if err != nil || len(out.Files) != 1 {
		t.Errorf("a job: got %+v, %v, want its picture", out, err)
	}
}

func TestCancelledJobThatDoesNotStopCostsItsWorker(t *testing.T) {
	r, child := ipctest.ChildRig(t, func(c *worker.ChildConfig) { c.Grace = 100 * time.Millisecond })
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	if _, err := client.Submit(ctx, c, &message.RunRequest{ID: "h", Workflow: messagetest.Graph("Hang")}); err != nil {
		t.Fatal(err)
	}
	cur, err := r.Jobs.Follow(ctx, "h", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	for kind := ""; kind != "executing"; { // a job that has not reached the worker yet costs nothing
		it, err := cur.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		kind = it.Event.Type
	}
	pid := child.PID()
	if _, _, err := client.Cancel(ctx, c, "h"); err != nil {
		t.Fatal(err)
	}
	ipctest.WaitState(t, r.Jobs, "h", message.Cancelled)
	_, _, end := ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Picture 1")})
	if end.Type != message.EventSuccess || child.PID() == pid {
		t.Errorf("got %+v from worker %d, the old one was %d", end, child.PID(), pid)
	}
}

func TestFrozenWorkerIsReplaced(t *testing.T) {
	r, child := ipctest.ChildRig(t, func(c *worker.ChildConfig) {
		c.Beat, c.Silence = 20*time.Millisecond,
			300*time.Millisecond
	})
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	if _, err := client.Submit(ctx, c, &message.RunRequest{
		ID:       "f",
		Workflow: messagetest.Graph("Wait 600000"),
	}); err != nil {
		t.Fatal(err)
	}
	ipctest.WaitState(t, r.Jobs, "f", message.Running)
	if err := syscall.Kill(child.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if rec := ipctest.CancelInAttempt(t, r.Jobs, c, "f", 2); rec.Attempt != 2 {
		t.Errorf("got attempt %d, want 2", rec.Attempt)
	}
}

// TestWorkerThatNeverStartsIsGivenUp checks that five lives without an answer end the supervision with the cause. A
// worker that has answered once is restarted forever.
func TestWorkerThatNeverStartsIsGivenUp(t *testing.T) {
	lives := 0
	child := worker.NewChild(worker.ChildConfig{
		Name: "worker 0", Log: zerolog.Nop(), BackOff: time.Millisecond,
		Command: func() *exec.Cmd {
			lives++
			return exec.Command("sh", "-c", "echo level avx9 is not known >&2; exit 3")
		},
	})
	err := child.Supervise(context.Background())
	if err == nil || !strings.Contains(err.Error(), "does not start") || !strings.Contains(err.Error(), "code 3") ||
		!strings.Contains(err.Error(), "avx9") {
		t.Errorf("got %v, want an error that names the exit code and what the worker said", err)
	}
	if lives != 5 {
		t.Errorf("%d lives, want 5", lives)
	}
}
