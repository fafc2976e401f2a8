package worker_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
)

// program starts a worker as another program does, on pipes, and returns its standard input too.
func program(t *testing.T) (*exec.Cmd, io.WriteCloser, *client.FrameClient) {
	t.Helper()
	cmd := ipctest.HostedCommand()
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
	return cmd, in, client.NewFrameClient(out, in, in.Close)
}

// hosted is program for a worker that ends with the test.
func hosted(t *testing.T) *client.FrameClient {
	t.Helper()
	cmd, _, c := program(t)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// replies asks and returns all replies up to the end.
func replies(t *testing.T, c client.Client, verb string, body any) (all []*pyjson.Object) {
	t.Helper()
	ctx := wiretest.Context(t)
	r, err := c.Ask(ctx, verb, "", body)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		o, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v after %d replies", verb, err, len(all))
		}
		all = append(all, o)
	}
}

// TestRunOfAHostedWorker checks every message with which a worker answers the run of another program: those of a
// daemon, in its order.
func TestRunOfAHostedWorker(t *testing.T) {
	c := hosted(t)
	var got []string
	seq, bytes := int64(0), 0
	for _, o := range replies(t, c, message.VerbRun, &message.RunRequest{
		ID: "r", Workflow: messagetest.Graph("Step 2", "Picture 900000"), Preview: true,
	}) {
		kind, _ := o.At("type").(string)
		if kind != message.ReplyHeartbeat {
			got = append(got, kind)
		}
		if job := o.At("job"); job != "r" {
			t.Errorf("%s is of the job %v", kind, job)
		}
		data, _ := o.At("data").(*pyjson.Object)
		switch kind {
		case message.ReplyOutput:
			b, _ := o.At("data").([]byte)
			bytes += len(b)
		case message.ReplyAccepted:
			if o.At("state") != "queued" || o.At("position") != int64(0) {
				t.Errorf("the receipt: %v", o)
			}
		case message.EventSuccess:
			list, _ := data.At("outputs").([]any)
			if len(list) != 1 {
				t.Errorf("the last event lists %v", list)
			}
		case message.EventExecuting, message.EventProgress, message.EventStart:
			if data.At("prompt_id") != "r" {
				t.Errorf("%s carries %v", kind, data)
			}
		}
		if n, isEvent := o.At("seq").(int64); isEvent {
			if seq++; n != seq || o.At("attempt") != int64(1) || o.At("ts") == int64(0) {
				t.Errorf("event %d: %v", seq, o)
			}
		}
	}
	want := "accepted queued execution_start executing progress preview progress preview executing executed metrics " +
		"executing output execution_success"
	if text := strings.Join(got, " "); text != want || bytes != 900000 {
		t.Errorf("got  %s, %d bytes\nwant %s", text, bytes, want)
	}
}

// TestHostedWorkerValidates checks that a workflow that cannot run is refused before any of it does, even if its sender
// says that it has been validated.
func TestHostedWorkerValidates(t *testing.T) {
	c := hosted(t)
	for _, body := range []*message.RunRequest{
		{Workflow: messagetest.Graph("Step 1", "Nope")},
		{Workflow: messagetest.Graph("Step 1", "Nope"), Validated: []string{"1"}},
	} {
		r, err := c.Ask(wiretest.Context(t), message.VerbRun, "", body)
		if err != nil {
			t.Fatal(err)
		}
		o, err := r.One(wiretest.Context(t))
		if wiretest.Code(err) != fault.BadWorkflow || !strings.Contains(err.Error(), "Nope") {
			t.Errorf("got %v, %v, want %s", o, err, fault.BadWorkflow)
		}
	}
}

// TestWorkerNamesWhatItDoesNotAnswer checks that a verb of a daemon is refused by its name, with what a worker answers.
func TestWorkerNamesWhatItDoesNotAnswer(t *testing.T) {
	c := hosted(t)
	answered := []string{
		message.VerbRun, message.VerbExec, message.VerbSample, message.VerbLoad, message.VerbFree, message.VerbDescribe,
		message.VerbCancel,
	}
	for _, verb := range append(message.VerbNames(), "dance") {
		r, err := c.Ask(wiretest.Context(t), verb, "", map[string]any{"job": "j"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.One(wiretest.Context(t))
		refused := wiretest.Code(err) == fault.NoVerb
		if refused == slices.Contains(answered, verb) {
			t.Errorf("%s: got %v", verb, err)
		}
		if !refused {
			continue
		}
		for _, name := range append([]string{verb}, answered...) {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("the refusal of %s does not name %s: %v", verb, name, err)
			}
		}
	}
}

// TestCancelOfAHostedWorker checks that a job stops when its host says so, whether it runs or waits for others, that a
// job of the same id is refused meanwhile, and that the id is free again afterwards.
func TestCancelOfAHostedWorker(t *testing.T) {
	c := hosted(t)
	ctx := wiretest.Context(t)
	var wait sync.WaitGroup
	defer wait.Wait()
	run := func(id string, begun chan<- string) {
		wait.Go(func() {
			end, err := client.Run(ctx, c, &message.RunRequest{ID: id, Workflow: messagetest.Graph("Wait 600000")},
				&client.Collector{Event: func(ev message.Event) {
					if ev.Type == message.EventExecuting && ev.Node != "" || id == "c" && ev.Type == message.EventQueued {
						begun <- id
					}
				}})
			if err != nil || end == nil || end.Type != message.EventInterrupted ||
				wiretest.Code(end.Error) != fault.Cancelled {
				t.Errorf("%s: ended with %+v, %v", id, end, err)
			}
			begun <- id
		})
	}
	next := func(begun <-chan string, want string) {
		t.Helper()
		select {
		case id := <-begun:
			if id != want {
				t.Fatalf("heard of %s, want %s", id, want)
			}
		case <-ctx.Done():
			t.Fatalf("nothing is heard of %s", want)
		}
	}
	stop := func(id string) {
		t.Helper()
		if did, _, err := client.Cancel(ctx, c, id); err != nil || !did {
			t.Fatalf("cancel %s: %v, %v", id, did, err)
		}
	}
	a, b, waits := make(chan string, 4), make(chan string, 4), make(chan string, 4)
	run("a", a)
	next(a, "a")
	run("b", b)
	next(b, "b")
	run("c", waits) // two run at a time
	next(waits, "c")
	again := &message.RunRequest{ID: "a", Workflow: messagetest.Graph("Step 1")}
	if _, err := client.Run(ctx, c, again, &client.Collector{}); wiretest.Code(err) != fault.Duplicate {
		t.Errorf("a second job of that id: %v, want %s", err, fault.Duplicate)
	}
	stop("c")
	next(waits, "c")
	stop("a")
	next(a, "a")
	if end, err := client.Run(ctx, c, again, &client.Collector{}); err != nil || end.Type != message.EventSuccess {
		t.Errorf("the id of a job that has ended: %+v, %v", end, err)
	}
	stop("b")
	next(b, "b")
	if _, _, err := client.Cancel(ctx, c, "b"); wiretest.Code(err) != fault.NoJob {
		t.Errorf("cancel of a job that has ended: %v, want %s", err, fault.NoJob)
	}
}

// TestJobsOfAWorkerAreKeptApart checks that of two jobs that run at once, each hears what it has done and nothing else.
func TestJobsOfAWorkerAreKeptApart(t *testing.T) {
	_, child := ipctest.ChildRig(t, nil)
	ctx := wiretest.Context(t)
	if err := child.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	for id, steps := range map[string]int64{"a": 400, "b": 300} {
		both.Go(func() {
			next := int64(1)
			_, err := child.Run(ctx, jobs.Task{
				Req: &message.RunRequest{ID: id, Workflow: messagetest.Graph(fmt.Sprint("Step ", steps))},
			}, jobs.Sink{Event: func(ev message.Event) {
				if ev.Type != message.EventProgress {
					return
				}
				if ev.Data["value"] != next || ev.Data["max"] != steps {
					t.Errorf("%s: got %v, want step %d of %d", id, ev.Data, next, steps)
				}
				next++
			}})
			if err != nil || next != steps+1 {
				t.Errorf("%s: %d steps, %v", id, next-1, err)
			}
		})
	}
	both.Wait()
}

// TestWorkerOnPlainPipes checks a worker that a host starts itself.
func TestWorkerOnPlainPipes(t *testing.T) {
	cmd, in, c := program(t)
	_, col, end := ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Picture 700000")})
	if end.Type != message.EventSuccess || len(col.Files) != 1 || len(col.Files[0].Data) != 700000 {
		t.Errorf("got %+v, %d files", end, len(col.Files))
	}
	// A job that ignores its context must not keep the worker alive when its host is gone.
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	ctx := wiretest.Context(t)
	go func() { // until the worker ends
		_, _ = client.Run(ctx, c, &message.RunRequest{Workflow: messagetest.Graph("Hang")}, &client.Collector{
			Event: func(ev message.Event) {
				if ev.Type == message.EventStart {
					begin()
				}
			},
		})
	}()
	select {
	case <-begun:
	case <-ctx.Done():
		t.Fatal("the job does not begin")
	}
	stays := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() }) // one second is promised
	defer stays.Stop()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	<-c.Gone()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the worker ended with %v after its stdin had closed; killed, it had stayed for two minutes", err)
	}
}
