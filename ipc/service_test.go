package ipc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/node"
)

// dialRig connects a client to a rig over frames on a pipe.
func dialRig(t *testing.T, r *rig) *FrameClient {
	t.Helper()
	here, there := net.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := serveConn(ctx, ctx, there, there, func() { _ = there.Close() }, r.svc); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("serve: %v", err)
		}
	}()
	c := NewFrameClient(here, here, here.Close)
	t.Cleanup(func() {
		_ = c.Close()
		stop()
		<-done
	})
	return c
}

// types lists the types of events.
func types(evs []Event) []string {
	var out []string
	for _, e := range evs {
		out = append(out, e.Type)
	}
	return out
}

// runJob runs a workflow and returns its events, the collector and the terminal event.
func runJob(t *testing.T, c Client, req *RunRequest) ([]Event, *Collector, *Event) {
	t.Helper()
	var evs []Event
	col := &Collector{Event: func(e Event) { evs = append(evs, e) }}
	end, err := Run(within(t, 20*time.Second), c, req, col)
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	if end == nil {
		t.Fatalf("no terminal event; events %v", types(evs))
	}
	return evs, col, end
}

func TestRunOverFrames(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	for i, size := range []int{10, 512 << 10, 512<<10 + 1, 3 << 20, 700 << 10} {
		if i == 4 {
			c.enc = JSON
		}
		evs, col, end := runJob(t, c, &RunRequest{Workflow: graph("Step 3", "Picture "+strconv.Itoa(size))})
		want := "queued execution_start executing progress progress progress executing executed metrics execution_success"
		if got := strings.Join(types(evs), " "); got != want {
			t.Errorf("%d bytes: got events %s, want %s", size, got, want)
		}
		for n, e := range evs {
			if e.Seq != uint64(n+1) || e.Attempt > 1 || e.Data == nil {
				t.Errorf("event %d: %+v", n, e)
			}
		}
		if end.Type != EventSuccess || len(col.Files) != 1 || !bytes.Equal(col.Files[0].Data, fakePicture("2", size).Data) {
			t.Errorf("%d bytes: ended with %s and %d files", size, end.Type, len(col.Files))
		}
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, JobsConfig{MaxQueued: 1}, ShelfConfig{})
	c := dialRig(t, r)
	ctx := within(t, 10*time.Second)
	ask := func(verb string, body any) *Error {
		t.Helper()
		rep, err := c.Ask(ctx, verb, "", body)
		if err != nil {
			t.Fatal(err)
		}
		_, err = rep.Next(ctx)
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("%s %v: got %v, want an *Error", verb, body, err)
		}
		if _, err := rep.Next(ctx); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the stream did not end after the error: %v", verb, err)
		}
		return e
	}
	for _, row := range []struct {
		verb string
		body any
		code string
		says string
	}{
		{VerbRun, nil, ErrEmptyBody, "--force-stdin"},
		{VerbSubmit, nil, ErrEmptyBody, "--force-stdin"},
		{VerbExec, nil, ErrEmptyBody, "empty"},
		{VerbRun, graph("Nope"), ErrBadWorkflow, "Nope does not exist"},
		{VerbRun, map[string]any{"x": 1}, ErrBadRequest, "workflow"},
		{VerbStatus, map[string]any{"job": "none"}, ErrNoJob, "none"},
		{VerbStatus, nil, ErrBadRequest, "field job"},
		{VerbCancel, map[string]any{"job": "none"}, ErrNoJob, "none"},
		{VerbDescribe, map[string]any{"class": "Nope"}, ErrNoNodeType, "Nope"},
		{VerbExec, map[string]any{"class_type": "Nope"}, ErrNoNodeType, "Nope"},
		{VerbExec, map[string]any{"class_type": "Echo", "inputs": map[string]any{"m": map[string]any{"$handle": "gone"}}}, ErrNoHandle, "gone"},
		{"dance", nil, ErrNoVerb, "the verbs are"},
	} {
		e := ask(row.verb, row.body)
		if e.Code != row.code || !strings.Contains(e.Error(), row.says) {
			t.Errorf("%s %v: got %v, want %s and %q", row.verb, row.body, e, row.code, row.says)
		}
		if row.code == ErrBadWorkflow && (e.Type != node.CodeInvalidPrompt || len(e.NodeErrors) != 1) {
			t.Errorf("ComfyUI's type and node_errors are lost: %+v", e)
		}
	}
	for i := range 2 { // one runs (soon), one waits
		if _, err := Submit(ctx, c, &RunRequest{ID: "q" + strconv.Itoa(i), Workflow: graph("Wait 300")}); err != nil {
			t.Fatal(err)
		}
		waitState(t, r.jobs, "q0", Running)
	}
	if e := ask(VerbSubmit, &RunRequest{ID: "q3", Workflow: graph("Wait 1")}); e.Code != ErrQueueFull || e.RetryAfterMS == 0 || !e.Retryable {
		t.Errorf("a full queue: got %+v", e)
	}
}

func waitState(t *testing.T, j *Jobs, id string, want State) Record {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		rec, err := j.Get(context.Background(), id)
		if err == nil && rec.State == want {
			return rec
		}
		if time.Now().After(deadline) {
			t.Fatalf("job %s is %+v (%v), want state %s", id, rec, err, want)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestHostileFrames(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	here, there := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- serveConn(context.Background(), context.Background(), there, there, func() { _ = there.Close() }, r.svc)
	}()
	send := func(b []byte) *node.Object {
		t.Helper()
		go func() { _, _ = here.Write(b) }()
		body, err := ReadFrame(here)
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		enc, _ := Sniff(body)
		o, err := Decode(body, enc, DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for name, body := range bombs() {
		o := send(frameOf(body))
		if e := replyError(o); e == nil {
			t.Errorf("%s: got %v, want an error", name, o.Keys())
		}
	}
	for _, body := range []string{"", "hello", `{"op":1}`, `{"tag":1}`, `[1]`, "{"} {
		if e := replyError(send(frameOf([]byte(body)))); e == nil {
			t.Errorf("%q: want an error", body)
		}
	}
	o := send(frameOf([]byte(`{"op":"ping","tag":"still here"}`)))
	if tag, _ := o.Get("tag"); tag != "still here" {
		t.Errorf("after the bombs: got %v", o.Keys())
	}
	if e := replyError(send([]byte{0xff, 0xff, 0xff, 0xff})); e == nil {
		t.Error("a frame of 4 GiB: want an error")
	}
	if err := <-done; !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("the connection ended with %v, want %v", err, ErrFrameTooLarge)
	}
	_ = here.Close()
}

func TestTiedRunEndsWithItsConnection(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	ctx := within(t, 10*time.Second)
	if _, err := Submit(ctx, c, &RunRequest{ID: "sub", Workflow: graph("Wait 200")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ask(ctx, VerbRun, "", &RunRequest{ID: "tied", Workflow: graph("Wait 60000")}); err != nil {
		t.Fatal(err)
	}
	waitState(t, r.jobs, "tied", Running)
	_ = c.Close()
	rec := waitState(t, r.jobs, "tied", Cancelled)
	if rec.Error == nil || rec.Error.Code != ErrCancelled {
		t.Errorf("got error %v", rec.Error)
	}
	waitState(t, r.jobs, "sub", Done)
}

func TestCancelQueuedAndRunning(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	ctx := within(t, 10*time.Second)
	for _, id := range []string{"a", "b"} {
		if _, err := Submit(ctx, c, &RunRequest{ID: id, Workflow: graph("Wait 60000")}); err != nil {
			t.Fatal(err)
		}
	}
	waitState(t, r.jobs, "a", Running)
	if did, state, err := Cancel(ctx, c, "b"); err != nil || !did || state != Cancelled {
		t.Errorf("cancel a waiting job: %v %s %v", did, state, err)
	}
	if did, _, err := Cancel(ctx, c, "a"); err != nil || !did {
		t.Errorf("cancel a running job: %v %v", did, err)
	}
	waitState(t, r.jobs, "a", Cancelled)
	if did, state, err := Cancel(ctx, c, "a"); err != nil || did || state != Cancelled {
		t.Errorf("cancel again: %v %s %v", did, state, err)
	}
	for _, id := range []string{"a", "b"} {
		var evs []Event
		end, err := Follow(ctx, c, id, 0, false, &Collector{Event: func(e Event) { evs = append(evs, e) }})
		if err != nil || end == nil || end.Type != EventInterrupted {
			t.Errorf("%s: events %v, %v", id, types(evs), err)
		}
	}
}

func TestFailureDeadlineExpiryPanic(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	_, _, end := runJob(t, c, &RunRequest{Workflow: graph("Fail")})
	if end.Type != EventError || end.Error.Code != ErrOutOfMemory || end.Error.Node != "1" || end.Data["exception_type"] != node.CodeOutOfMemory {
		t.Errorf("failure: %+v %+v", end, end.Error)
	}
	_, _, end = runJob(t, c, &RunRequest{Workflow: graph("Panic")})
	if end.Type != EventError || end.Error.Code != ErrInternal || len(end.Error.Trace) == 0 || !strings.Contains(end.Error.Message, "the fake panics") {
		t.Errorf("panic: %+v", end.Error)
	}
	_, _, end = runJob(t, c, &RunRequest{Workflow: graph("Wait 60000"), DeadlineMS: 50})
	if end.Type != EventError || end.Error.Code != ErrDeadline {
		t.Errorf("deadline: %+v", end.Error)
	}
	ctx := within(t, 10*time.Second)
	if _, err := Submit(ctx, c, &RunRequest{ID: "long", Workflow: graph("Wait 600")}); err != nil {
		t.Fatal(err)
	}
	waitState(t, r.jobs, "long", Running)
	_, _, end = runJob(t, c, &RunRequest{Workflow: graph("Wait 1"), QueueTTLMS: 20})
	if end.Type != EventExpired || end.Error.Code != ErrExpired {
		t.Errorf("expiry: %+v", end)
	}
}

func TestIdempotentJobs(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	ctx := within(t, 10*time.Second)
	req := &RunRequest{ID: "same", Workflow: graph("Wait 50", "Picture 9")}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			col := &Collector{}
			end, err := Run(ctx, c, req, col)
			if err != nil || end == nil || end.Type != EventSuccess || len(col.Files) != 1 {
				t.Errorf("got %+v, %d files, %v", end, len(col.Files), err)
			}
		})
	}
	wg.Wait()
	rec, err := Status(ctx, c, "same")
	if err != nil || rec.Attempt != 1 || rec.State != Done {
		t.Errorf("got %+v, %v", rec, err)
	}
	_, err = Submit(ctx, c, &RunRequest{ID: "same", Workflow: graph("Wait 51")})
	var e *Error
	if !errors.As(err, &e) || e.Code != ErrDuplicate {
		t.Errorf("the same id with another body: %v", err)
	}
	list, counts, err := List(ctx, c, "", 10)
	if err != nil || len(list) != 1 || counts[Done] != 1 {
		t.Errorf("got %d jobs, %v, %v", len(list), counts, err)
	}
}

func TestFilesAreNamedAfterTheJobIsDone(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	r := newRig(t, JobsConfig{Keep: 1}, ShelfConfig{Stage: filepath.Join(out, ".stage"), Output: out})
	c := dialRig(t, r)
	evs, col, _ := runJob(t, c, &RunRequest{ID: "one", Workflow: graph("Picture 100", "Picture 700000")})
	if len(col.Files) != 2 {
		t.Fatalf("got %d files", len(col.Files))
	}
	var shown []string
	for _, e := range evs {
		if e.Type != EventExecuted {
			continue
		}
		o, _ := e.Data["output"].(*node.Object)
		l, _ := o.Get("images")
		name, _ := l.([]any)[0].(*node.Object).Get("filename")
		shown = append(shown, name.(string))
	}
	if want := []string{"fake_00001_.png", "fake_00002_.png"}; !slices.Equal(shown, want) {
		t.Errorf("executed events name %v, want %v", shown, want)
	}
	for i, f := range col.Files {
		b, err := os.ReadFile(filepath.Join(out, f.Ref.Filename))
		if err != nil || !bytes.Equal(b, f.Data) {
			t.Errorf("file %d: %v", i, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(out, ".stage")); len(left) != 0 {
		t.Errorf("%d entries are left in the stage", len(left))
	}
	files, err := Fetch(within(t, 5*time.Second), c, "one")
	if err != nil || len(files) != 2 || !bytes.Equal(files[1].Data, col.Files[1].Data) {
		t.Errorf("fetch: %d files, %v", len(files), err)
	}
	if err := os.WriteFile(filepath.Join(out, "fake_00001_.png"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err = Fetch(within(t, 5*time.Second), c, "one"); !errors.As(err, &e) || e.Code != ErrExpired {
		t.Errorf("fetch of a file that was changed: %v", err)
	}
	runJob(t, c, &RunRequest{ID: "two", Workflow: graph("Picture 1")})
	if _, err := Status(within(t, 5*time.Second), c, "one"); !errors.As(err, &e) || e.Code != ErrNoJob {
		t.Errorf("a job beyond Keep: %v", err)
	}
}

func TestExecAndHandles(t *testing.T) {
	a, b := &fake{name: "a"}, &fake{name: "b"}
	r := newRig(t, JobsConfig{}, ShelfConfig{}, a, b)
	c := dialRig(t, r)
	ctx := within(t, 5*time.Second)
	exec := func(class string, inputs map[string]any) ExecReply {
		t.Helper()
		var out ExecReply
		if err := askOne(ctx, c, VerbExec, "", map[string]any{"class_type": class, "inputs": inputs}, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := exec("Loader", nil)
	for range 3 { // whoever holds the handle answers
		got := exec("Echo", map[string]any{"value": first.Outputs[0]})
		if got.Worker != first.Worker {
			t.Errorf("handle of %s went to %s", first.Worker, got.Worker)
		}
	}
	second := exec("Loader", nil)
	if second.Worker == first.Worker {
		second = exec("Loader", nil)
	}
	var out ExecReply
	err := askOne(ctx, c, VerbExec, "", map[string]any{"class_type": "Echo", "inputs": map[string]any{"value": []any{first.Outputs[0], second.Outputs[0]}}}, &out)
	var e *Error
	if !errors.As(err, &e) || e.Code != ErrNoHandle {
		t.Errorf("handles of two workers: %v", err)
	}
	var freed FreeReply
	if err := askOne(ctx, c, VerbFree, "", map[string]any{"handles": []string{"a-h1", "b-h1"}}, &freed); err != nil {
		t.Fatal(err)
	}
	if err := askOne(ctx, c, VerbExec, "", map[string]any{"class_type": "Echo", "inputs": map[string]any{"value": first.Outputs[0]}}, &out); !errors.As(err, &e) || e.Code != ErrNoHandle {
		t.Errorf("a freed handle: %v", err)
	}
}

func TestPreviewsOnlyWhenAsked(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	for _, want := range []bool{false, true} {
		n := 0
		col := &Collector{Preview: func(id string, p []byte) {
			if id == "" || string(p) != "jpeg" {
				t.Errorf("got preview %q of node %s", p, id)
			}
			n++
		}}
		if _, err := Run(within(t, 5*time.Second), c, &RunRequest{Preview: want, Workflow: graph("Step 3", "Wait 100", "Step 1", "Wait 100")}, col); err != nil {
			t.Fatal(err)
		}
		if (n > 0) != want {
			t.Errorf("preview %v: got %d", want, n)
		}
	}
}
