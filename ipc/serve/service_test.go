package serve_test

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

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
)

func TestRunOverFrames(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	for i, size := range []int{10, 512 << 10, 512<<10 + 1, 3 << 20, 700 << 10} {
		if i == 4 {
			c.Enc = wire.JSON
		}
		evs, col, end := ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Step 3",
			"Picture "+strconv.Itoa(size))})
		if titles, _ := evs[0].Data["titles"].(*pyjson.Object); titles == nil || titles.Len() != 2 {
			t.Errorf("%d bytes: the first event has titles %v", size, evs[0].Data["titles"])
		}
		want := "queued execution_start executing progress progress progress executing executed metrics executing " +
			"execution_success"
		if got := strings.Join(ipctest.Types(evs), " "); got != want {
			t.Errorf("%d bytes: got events %s, want %s", size, got, want)
		}
		for n, e := range evs {
			if e.Seq != uint64(n+1) || e.Attempt > 1 || e.Data == nil {
				t.Errorf("event %d: %+v", n, e)
			}
		}
		if end.Type != message.EventSuccess || len(col.Files) != 1 ||
			!bytes.Equal(col.Files[0].Data, messagetest.Picture("2", size).Data) {
			t.Errorf("%d bytes: ended with %s and %d files", size, end.Type, len(col.Files))
		}
	}
}

func TestRefusals(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{MaxQueued: 1}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	ask := func(verb string, body any) *fault.Error {
		t.Helper()
		rep, err := c.Ask(ctx, verb, "", body)
		if err != nil {
			t.Fatal(err)
		}
		_, err = rep.Next(ctx)
		var e *fault.Error
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
		{message.VerbRun, nil, fault.EmptyBody, "--force-stdin"},
		{message.VerbSubmit, nil, fault.EmptyBody, "--force-stdin"},
		{message.VerbExec, nil, fault.EmptyBody, "empty"},
		{message.VerbRun, messagetest.Graph("Nope"), fault.BadWorkflow, "Node 'Nope' not found"},
		{message.VerbRun, map[string]any{"x": 1}, fault.BadRequest, "workflow"},
		{message.VerbStatus, map[string]any{"job": "none"}, fault.NoJob, "none"},
		{message.VerbStatus, nil, fault.BadRequest, "field job"},
		{message.VerbCancel, map[string]any{"job": "none"}, fault.NoJob, "none"},
		{message.VerbDescribe, map[string]any{"class": "Nope"}, fault.NoNodeType, "Nope"},
		{message.VerbExec, map[string]any{"class_type": "Nope"}, fault.NoNodeType, "Nope"},
		{message.VerbExec, map[string]any{
			"class_type": "Echo",
			"inputs":     map[string]any{"m": map[string]any{"$handle": "gone"}},
		}, fault.NoHandle, "gone"},
		{"dance", nil, fault.NoVerb, "the verbs are"},
	} {
		e := ask(row.verb, row.body)
		if e.Public() != row.code || !strings.Contains(e.Error(), row.says) {
			t.Errorf("%s %v: got %v, want %s and %q", row.verb, row.body, e, row.code, row.says)
		}
		if row.code == fault.BadWorkflow && (e.Code != fault.MissingNodeType || len(e.NodeErrors) != 1) {
			t.Errorf("ComfyUI's type and node_errors are lost: %+v", e)
		}
	}
	for i := range 2 { // one runs (soon), one waits
		if _, err := client.Submit(ctx, c, &message.RunRequest{
			ID:       "q" + strconv.Itoa(i),
			Workflow: messagetest.Graph("Wait 300"),
		}); err != nil {
			t.Fatal(err)
		}
		ipctest.WaitState(t, r.Jobs, "q0", message.Running)
	}
	if e := ask(message.VerbSubmit, &message.RunRequest{
		ID:       "q3",
		Workflow: messagetest.Graph("Wait 1"),
	}); e.Public() != fault.QueueFull || e.RetryAfterMS == 0 || !e.Retryable() {
		t.Errorf("a full queue: got %+v", e)
	}
}

func TestHostileFrames(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	clientEnd, serverEnd := net.Pipe()
	done := make(chan error, 1)
	go func() {
		carrier := &serve.Stdio{In: serverEnd, Out: serverEnd}
		done <- carrier.Serve(context.Background(), context.Background(), r.Service.Answerer)
	}()
	send := func(b []byte) *pyjson.Object {
		t.Helper()
		go func() { _, _ = clientEnd.Write(b) }()
		body, err := wire.ReadFrame(clientEnd)
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		enc, _ := wire.Sniff(body)
		o, err := wire.Decode(body, enc, wire.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for name, body := range wiretest.Bombs() {
		o := send(wiretest.FrameOf(body))
		if e := wire.ReplyError(o); e == nil {
			t.Errorf("%s: got %v, want an error", name, o.Keys())
		}
	}
	for _, body := range []string{"", "hello", `{"op":1}`, `{"tag":1}`, `[1]`, "{"} {
		if e := wire.ReplyError(send(wiretest.FrameOf([]byte(body)))); e == nil {
			t.Errorf("%q: want an error", body)
		}
	}
	o := send(wiretest.FrameOf([]byte(`{"op":"ping","tag":"still here"}`)))
	if tag, _ := o.Get("tag"); tag != "still here" {
		t.Errorf("after the bombs: got %v", o.Keys())
	}
	if e := wire.ReplyError(send([]byte{0xff, 0xff, 0xff, 0xff})); e == nil {
		t.Error("a frame of 4 GiB: want an error")
	}
	if err := <-done; !errors.Is(err, wire.ErrFrameTooLarge) {
		t.Errorf("the connection ended with %v, want %v", err, wire.ErrFrameTooLarge)
	}
	_ = clientEnd.Close()
}

func TestTiedRunEndsWithItsConnection(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	if _, err := client.Submit(ctx, c, &message.RunRequest{
		ID:       "sub",
		Workflow: messagetest.Graph("Wait 200"),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ask(ctx, message.VerbRun, "",
		&message.RunRequest{ID: "tied", Workflow: messagetest.Graph("Wait 60000")}); err != nil {
		t.Fatal(err)
	}
	ipctest.WaitState(t, r.Jobs, "tied", message.Running)
	_ = c.Close()
	rec := ipctest.WaitState(t, r.Jobs, "tied", message.Cancelled)
	if rec.Error == nil || rec.Error.Public() != fault.Cancelled {
		t.Errorf("got error %v", rec.Error)
	}
	ipctest.WaitState(t, r.Jobs, "sub", message.Done)
}

func TestCancelQueuedAndRunning(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	for _, id := range []string{"a", "b"} {
		if _, err := client.Submit(ctx, c, &message.RunRequest{
			ID:       id,
			Workflow: messagetest.Graph("Wait 60000"),
		}); err != nil {
			t.Fatal(err)
		}
	}
	ipctest.WaitState(t, r.Jobs, "a", message.Running)
	if did, state, err := client.Cancel(ctx, c, "b"); err != nil || !did || state != message.Cancelled {
		t.Errorf("cancel a waiting job: %v %s %v", did, state, err)
	}
	if did, _, err := client.Cancel(ctx, c, "a"); err != nil || !did {
		t.Errorf("cancel a running job: %v %v", did, err)
	}
	ipctest.WaitState(t, r.Jobs, "a", message.Cancelled)
	if did, state, err := client.Cancel(ctx, c, "a"); err != nil || did || state != message.Cancelled {
		t.Errorf("cancel again: %v %s %v", did, state, err)
	}
	for _, id := range []string{"a", "b"} {
		var evs []message.Event
		end, err := client.Follow(ctx, c, id, 0, false,
			&client.Collector{Event: func(e message.Event) { evs = append(evs, e) }})
		if err != nil || end == nil || end.Type != message.EventInterrupted {
			t.Errorf("%s: events %v, %v", id, ipctest.Types(evs), err)
		}
	}
}

func TestFailureDeadlineExpiryPanic(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	_, _, end := ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Fail")})
	if end.Type != message.EventError || end.Error.Public() != fault.OutOfMemory || end.Error.Node != "1" ||
		end.Data["exception_type"] != fault.OutOfMemory {
		t.Errorf("failure: %+v %+v", end, end.Error)
	}
	_, _, end = ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Panic")})
	if end.Type != message.EventError || end.Error.Public() != fault.Internal || len(end.Error.Stack) == 0 ||
		!strings.Contains(end.Error.Text, "the fake panics") {
		t.Errorf("panic: %+v", end.Error)
	}
	_, _, end = ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Wait 60000"), DeadlineMS: 50})
	if end.Type != message.EventError || end.Error.Public() != fault.Deadline {
		t.Errorf("deadline: %+v", end.Error)
	}
	ctx := wiretest.Context(t)
	if _, err := client.Submit(ctx, c, &message.RunRequest{
		ID:       "long",
		Workflow: messagetest.Graph("Wait 600"),
	}); err != nil {
		t.Fatal(err)
	}
	ipctest.WaitState(t, r.Jobs, "long", message.Running)
	_, _, end = ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Wait 1"), QueueTTLMS: 20})
	if end.Type != message.EventExpired || end.Error.Public() != fault.Expired {
		t.Errorf("expiry: %+v", end)
	}
}

func TestIdempotentJobs(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	req := &message.RunRequest{ID: "same", Workflow: messagetest.Graph("Wait 50", "Picture 9")}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			col := &client.Collector{}
			end, err := client.Run(ctx, c, req, col)
			if err != nil || end == nil || end.Type != message.EventSuccess || len(col.Files) != 1 {
				t.Errorf("got %+v, %d files, %v", end, len(col.Files), err)
			}
		})
	}
	wg.Wait()
	rec, err := client.Status(ctx, c, "same")
	if err != nil || rec.Attempt != 1 || rec.State != message.Done {
		t.Errorf("got %+v, %v", rec, err)
	}
	_, err = client.Submit(ctx, c, &message.RunRequest{ID: "same", Workflow: messagetest.Graph("Wait 51")})
	var e *fault.Error
	if !errors.As(err, &e) || e.Public() != fault.Duplicate {
		t.Errorf("the same id with another body: %v", err)
	}
	list, counts, err := client.List(ctx, c, "", 10)
	if err != nil || len(list) != 1 || counts[message.Done] != 1 {
		t.Errorf("got %d jobs, %v, %v", len(list), counts, err)
	}
}

func TestFilesAreNamedAfterTheJobIsDone(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	r := ipctest.NewRig(t, jobs.Config{Keep: 1}, jobs.OutputsConfig{Stage: filepath.Join(out, ".stage"), Output: out})
	c := ipctest.DialRig(t, r)
	evs, col, _ := ipctest.RunJob(t, c, &message.RunRequest{
		ID:       "one",
		Workflow: messagetest.Graph("Picture 100", "Picture 700000"),
	})
	if len(col.Files) != 2 {
		t.Fatalf("got %d files", len(col.Files))
	}
	var shown []string
	for _, e := range evs {
		if e.Type != message.EventExecuted {
			continue
		}
		o, _ := e.Data["output"].(*pyjson.Object)
		l, _ := o.Get("images")
		name, _ := l.([]any)[0].(*pyjson.Object).Get("filename")
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
	files, err := client.Fetch(wiretest.Context(t), c, "one")
	if err != nil || len(files) != 2 || !bytes.Equal(files[1].Data, col.Files[1].Data) {
		t.Errorf("fetch: %d files, %v", len(files), err)
	}
	if err := os.WriteFile(filepath.Join(out, "fake_00001_.png"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	var e *fault.Error
	if _, err = client.Fetch(wiretest.Context(t), c, "one"); !errors.As(err, &e) ||
		e.Public() != fault.Expired {
		t.Errorf("fetch of a file that was changed: %v", err)
	}
	ipctest.RunJob(t, c, &message.RunRequest{ID: "two", Workflow: messagetest.Graph("Picture 1")})
	if _, err := client.Status(wiretest.Context(t), c, "one"); !errors.As(err, &e) ||
		e.Public() != fault.NoJob {
		t.Errorf("a job beyond Keep: %v", err)
	}
}

func TestExecAndHandles(t *testing.T) {
	a, b := &ipctest.Fake{Label: "a"}, &ipctest.Fake{Label: "b"}
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{}, a, b)
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	exec := func(class string, inputs map[string]any) message.ExecReply {
		t.Helper()
		var out message.ExecReply
		if err := client.AskOne(ctx, c, message.VerbExec, "", map[string]any{"class_type": class, "inputs": inputs},
			&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := exec("Loader", nil)
	for range 3 { // whichever worker holds the handle answers
		got := exec("Echo", map[string]any{"value": first.Outputs[0]})
		if got.Worker != first.Worker {
			t.Errorf("handle of %s went to %s", first.Worker, got.Worker)
		}
	}
	second := exec("Loader", nil)
	if second.Worker == first.Worker {
		second = exec("Loader", nil)
	}
	var out message.ExecReply
	err := client.AskOne(ctx, c, message.VerbExec, "",
		map[string]any{"class_type": "Echo", "inputs": map[string]any{"value": []any{first.Outputs[0], second.Outputs[0]}}},
		&out)
	var e *fault.Error
	if !errors.As(err, &e) || e.Public() != fault.NoHandle {
		t.Errorf("handles of two workers: %v", err)
	}
	var freed message.FreeReply
	if err := client.AskOne(ctx, c, message.VerbFree, "", map[string]any{"handles": []string{"a-h1", "b-h1"}},
		&freed); err != nil {
		t.Fatal(err)
	}
	if err := client.AskOne(ctx, c, message.VerbExec, "",
		map[string]any{"class_type": "Echo", "inputs": map[string]any{"value": first.Outputs[0]}}, &out); !errors.As(err,
		&e) || e.Public() != fault.NoHandle {
		t.Errorf("a freed handle: %v", err)
	}
}

func TestPreviewsOnlyWhenAsked(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	for _, want := range []bool{false, true} {
		n := 0
		col := &client.Collector{Preview: func(id string, p []byte) {
			if id == "" || string(p) != "jpeg" {
				t.Errorf("got preview %q of node %s", p, id)
			}
			n++
		}}
		if _, err := client.Run(wiretest.Context(t), c,
			&message.RunRequest{Preview: want, Workflow: messagetest.Graph("Step 3", "Wait 100", "Step 1", "Wait 100")},
			col); err != nil {
			t.Fatal(err)
		}
		if (n > 0) != want {
			t.Errorf("preview %v: got %d", want, n)
		}
	}
}
