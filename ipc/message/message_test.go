package message_test

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"

	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire"
	"patchbay/node/fault"
	"patchbay/node/pyjson"
)

func TestParseRunShapes(t *testing.T) {
	g := messagetest.Graph("Wait 1", "Picture 5")
	for name, body := range map[string]*pyjson.Object{
		"envelope": pyjson.NewObject("id", "j1", "workflow", g),
		"envelope text": pyjson.NewObject("id", "j1", "workflow",
			`{"1":{"class_type":"Wait","inputs":{"n":1}},"2":{"class_type":"Picture","inputs":{"n":5}}}`),
		"comfyui": pyjson.NewObject("prompt", g, "prompt_id", "j1", "client_id", "c", "extra_data",
			pyjson.NewObject("extra_pnginfo", pyjson.NewObject("workflow", pyjson.NewObject("nodes", []any{}))), "front", true),
	} {
		req, w, err := message.ParseRun(body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if req.ID != "j1" || w.Len() != 2 || w.Class("2") != "Picture" {
			t.Errorf("%s: got id %q and %d nodes", name, req.ID, w.Len())
		}
		if name == "comfyui" && (req.ExtraPNG == nil || !req.Front) {
			t.Errorf("comfyui: extra_pnginfo or front is lost")
		}
	}
	req, w, err := message.ParseRun(g)
	if err != nil || w.Len() != 2 || !wire.ValidID(req.ID) {
		t.Errorf("bare graph: %v", err)
	}
	odd := pyjson.NewObject("prompt", pyjson.NewObject("class_type", "Wait", "inputs", pyjson.NewObject()))
	if _, w, err := message.ParseRun(odd); err != nil || w.Class("prompt") != "Wait" {
		t.Errorf("bare graph with a node called prompt: %v", err)
	}
}

func TestParseRunRefuses(t *testing.T) {
	g := messagetest.Graph("Wait 1")
	for name, c := range map[string]struct {
		body *pyjson.Object
		code string
		says string
	}{
		"nothing":        {pyjson.NewObject(), wire.ErrBadRequest, "workflow"},
		"other fields":   {pyjson.NewObject("foo", int64(1)), wire.ErrBadRequest, "workflow"},
		"bad id":         {pyjson.NewObject("workflow", g, "id", "a.b"), wire.ErrBadRequest, "A-Z"},
		"long id":        {pyjson.NewObject("workflow", g, "id", strings.Repeat("a", 65)), wire.ErrBadRequest, "64"},
		"id of a number": {pyjson.NewObject("workflow", g, "id", int64(3)), wire.ErrBadRequest, "field id"},
		"a typo":         {pyjson.NewObject("workflow", g, "plna", "ulysses=2"), wire.ErrBadRequest, "plna"},
		"strict":         {pyjson.NewObject("workflow", g, "strict", true, "plam", "x"), wire.ErrBadRequest, "plam"},
		"negative time":  {pyjson.NewObject("workflow", g, "deadline_ms", int64(-1)), wire.ErrBadRequest, "negative"},
		"editor format":  {pyjson.NewObject("nodes", []any{}, "links", []any{}), wire.ErrBadWorkflow, "API format"},
		"workflow list":  {pyjson.NewObject("workflow", []any{int64(1)}), wire.ErrBadWorkflow, "object"},
		"workflow text":  {pyjson.NewObject("workflow", strings.Repeat("[", 1e6)), wire.ErrBadWorkflow, "nested"},
		"extra_pnginfo": {
			pyjson.NewObject("prompt", g, "extra_data", pyjson.NewObject("extra_pnginfo", "x")),
			wire.ErrBadRequest, "extra_pnginfo",
		},
	} {
		_, _, err := message.ParseRun(c.body)
		if err == nil || err.Code != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want code %s and %q in the text", name, err, c.code, c.says)
		}
	}
}

func TestMessagesReadBackInBothEncodings(t *testing.T) {
	rec := message.Record{
		V: 1, Job: "j", State: message.Failed, Rev: 7, Attempt: 2, Created: 5, Hash: "h",
		Error:   wire.Errorf(wire.ErrNoModel, "no file"),
		Outputs: []message.OutputRef{{Node: "9", Ext: ".png", Bytes: 3, CRC32C: 1 << 31}},
	}
	for _, enc := range []wire.Encoding{wire.Msgpack, wire.JSON} {
		b, err := wire.Encode(message.RecordReply{Type: "record", Record: rec}, enc)
		if err != nil {
			t.Fatal(err)
		}
		o, err := wire.Decode(b, enc, wire.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		var got message.RecordReply
		if err := wire.Bind(o, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Record, rec) {
			t.Errorf("encoding %d: got %+v, want %+v", enc, got.Record, rec)
		}
	}
}

func TestErrorTableIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range wire.ErrorTable() {
		if seen[c.Code] || c.Status < 400 || c.Status > 599 || c.When == "" {
			t.Errorf("row %+v", c)
		}
		seen[c.Code] = true
	}
	// Every code of package node lands on a row.
	for _, code := range []string{
		fault.CodeNoPrompt, fault.CodeInvalidPrompt, fault.CodeNoOutputs,
		fault.CodeOutputsFailed, fault.CodeTooLarge, fault.CodeCancelled, fault.CodeOutOfMemory, fault.CodeFileMissing,
		fault.CodeFileOutsideRoot, fault.CodeBadCheckpoint, fault.CodeWrongFamily, fault.CodeTokenizer, fault.CodeBadImage,
		fault.CodeBadInput, fault.CodeDiskFull, fault.CodeDeadline, fault.CodePanic, fault.CodeInternal,
		fault.CodeUnknownHandle, fault.CodeUnknownClass,
	} {
		e := message.ErrorOf(&fault.Failure{Code: code, Message: "m", Node: "3", Class: "K"})
		if !seen[e.Code] || e.Type != code || e.Node != "3" {
			t.Errorf("%s became %+v", code, e)
		}
	}
	if e := message.ErrorOf(errors.New("x")); e.Code != wire.ErrInternal {
		t.Errorf("got %s for an unknown error, want %s", e.Code, wire.ErrInternal)
	}
}

// TestSameFilesSameJob: a request with several files is the same job every time, whatever order they come in.
func TestSameFilesSameJob(t *testing.T) {
	files := map[string][]byte{}
	for _, name := range []string{"a.png", "b.png", "c.png", "d.png", "e.png"} {
		files[name] = []byte(name)
	}
	hash := func(files map[string][]byte) string {
		req, w, fault := message.ParseRun(pyjson.NewObject("workflow", messagetest.Graph("Wait 1"), "id", "j"))
		if fault != nil {
			t.Fatal(fault)
		}
		req.Inputs = files
		return message.Hash(req, w)
	}
	want := hash(files)
	for range 50 {
		if got := hash(maps.Clone(files)); got != want {
			t.Fatalf("the hash was %s and is %s", want, got)
		}
	}
	files["a.png"], files["b.png"] = files["b.png"], files["a.png"]
	if hash(files) == want {
		t.Error("files that changed names have the same hash")
	}
}

// TestOtherTimesSameJob: priority, deadline and queue time say when a job is to be done; the job of an id stays the
// same with others, and is another one with another workflow or plan.
func TestOtherTimesSameJob(t *testing.T) {
	hash := func(workflow string, fields ...any) string {
		t.Helper()
		req, w, fault := message.ParseRun(pyjson.NewObject(append([]any{"workflow", messagetest.Graph(workflow), "id", "j"},
			fields...)...))
		if fault != nil {
			t.Fatal(fault)
		}
		return message.Hash(req, w)
	}
	want := hash("Wait 1")
	if got := hash("Wait 1", "priority", "high", "deadline_ms", int64(5000), "queue_ttl_ms", int64(60000)); got != want {
		t.Error("other times make another job")
	}
	for name, got := range map[string]string{"workflow": hash("Wait 2"), "plan": hash("Wait 1", "plan", "ulysses=2")} {
		if got == want {
			t.Errorf("another %s is the same job", name)
		}
	}
}
