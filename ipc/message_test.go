package ipc

import (
	"errors"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"

	"patchbay/node/fault"
	"patchbay/node/pyjson"
)

func TestBindChecksRanges(t *testing.T) {
	type target struct {
		U8  uint8   `json:"u8"`
		I32 int32   `json:"i32"`
		U64 uint64  `json:"u64"`
		I64 int64   `json:"i64"`
		F   float64 `json:"f"`
		S   string  `json:"s"`
		B   bool    `json:"b"`
		L   []int   `json:"l"`
	}
	for _, c := range []struct {
		field string
		value any
		ok    bool
	}{
		{"u8", int64(255), true},
		{"u8", int64(300), false},
		{"u8", int64(-1), false},
		{"u8", 3.0, true},
		{"u8", 3.5, false},
		{"u8", "3", false},
		{"u8", true, false},
		{"i32", int64(1 << 40), false},
		{"i32", int64(-5), true},
		{"u64", uint64(math.MaxUint64), true},
		{"u64", int64(-5), false},
		{"u64", 1e30, false},
		{"u64", 18446744073709551616.0, false},
		{"i64", uint64(math.MaxUint64), false},
		{"i64", math.NaN(), false},
		{"f", int64(3), true},
		{"f", math.NaN(), false},
		{"f", math.Inf(1), false},
		{"f", "1", false},
		{"s", []byte("x"), false},
		{"s", int64(1), false},
		{"b", int64(1), false},
		{"l", []any{int64(1), "x"}, false},
		{"l", int64(1), false},
		{"s", nil, true},
	} {
		var v target
		err := Bind(pyjson.NewObject(c.field, c.value), &v)
		if (err == nil) != c.ok {
			t.Errorf("%s = %v (%T): got error %v, want ok %v", c.field, c.value, c.value, err, c.ok)
		}
		if err != nil && !strings.Contains(err.Error(), "field "+c.field) {
			t.Errorf("%s: the error does not name the field: %v", c.field, err)
		}
	}
}

func TestParseRunShapes(t *testing.T) {
	g := nodesOf("Wait 1", "Picture 5")
	for name, body := range map[string]*pyjson.Object{
		"envelope":      pyjson.NewObject("id", "j1", "workflow", g),
		"envelope text": pyjson.NewObject("id", "j1", "workflow", `{"1":{"class_type":"Wait","inputs":{"n":1}},"2":{"class_type":"Picture","inputs":{"n":5}}}`),
		"comfyui":       pyjson.NewObject("prompt", g, "prompt_id", "j1", "client_id", "c", "extra_data", pyjson.NewObject("extra_pnginfo", pyjson.NewObject("workflow", pyjson.NewObject("nodes", []any{}))), "front", true),
	} {
		req, w, err := ParseRun(body)
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
	req, w, err := ParseRun(g)
	if err != nil || w.Len() != 2 || !validID(req.ID) {
		t.Errorf("bare graph: %v", err)
	}
	odd := pyjson.NewObject("prompt", pyjson.NewObject("class_type", "Wait", "inputs", pyjson.NewObject()))
	if _, w, err := ParseRun(odd); err != nil || w.Class("prompt") != "Wait" {
		t.Errorf("bare graph with a node called prompt: %v", err)
	}
}

func TestParseRunRefuses(t *testing.T) {
	g := nodesOf("Wait 1")
	for name, c := range map[string]struct {
		body *pyjson.Object
		code string
		says string
	}{
		"nothing":        {pyjson.NewObject(), ErrBadRequest, "workflow"},
		"other fields":   {pyjson.NewObject("foo", int64(1)), ErrBadRequest, "workflow"},
		"bad id":         {pyjson.NewObject("workflow", g, "id", "a.b"), ErrBadRequest, "A-Z"},
		"long id":        {pyjson.NewObject("workflow", g, "id", strings.Repeat("a", 65)), ErrBadRequest, "64"},
		"id of a number": {pyjson.NewObject("workflow", g, "id", int64(3)), ErrBadRequest, "field id"},
		"strict":         {pyjson.NewObject("workflow", g, "strict", true, "plam", "x"), ErrBadRequest, "plam"},
		"negative time":  {pyjson.NewObject("workflow", g, "deadline_ms", int64(-1)), ErrBadRequest, "negative"},
		"editor format":  {pyjson.NewObject("nodes", []any{}, "links", []any{}), ErrBadWorkflow, "API format"},
		"workflow list":  {pyjson.NewObject("workflow", []any{int64(1)}), ErrBadWorkflow, "object"},
		"workflow text":  {pyjson.NewObject("workflow", strings.Repeat("[", 1e6)), ErrBadWorkflow, "nested"},
		"extra_pnginfo":  {pyjson.NewObject("prompt", g, "extra_data", pyjson.NewObject("extra_pnginfo", "x")), ErrBadRequest, "extra_pnginfo"},
	} {
		_, _, err := ParseRun(c.body)
		if err == nil || err.Code != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want code %s and %q in the text", name, err, c.code, c.says)
		}
	}
}

func TestMessagesReadBackInBothEncodings(t *testing.T) {
	rec := Record{V: 1, Job: "j", State: Failed, Rev: 7, Attempt: 2, Created: 5, Hash: "h", Error: Errorf(ErrNoModel, "no file"), Outputs: []OutputRef{{Node: "9", Ext: ".png", Bytes: 3, CRC32C: 1 << 31}}}
	for _, enc := range []Encoding{Msgpack, JSON} {
		b, err := Encode(recordReply{"record", rec}, enc)
		if err != nil {
			t.Fatal(err)
		}
		o, err := Decode(b, enc, DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		var got recordReply
		if err := Bind(o, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Record, rec) {
			t.Errorf("encoding %d: got %+v, want %+v", enc, got.Record, rec)
		}
	}
}

func TestTensorReadsBack(t *testing.T) {
	want := &Tensor{DType: "f32", Shape: []int{1, 2}, Data: []byte{0, 0, 128, 63, 0, 0, 0, 64}}
	for _, enc := range []Encoding{Msgpack, JSON} {
		b, err := Encode(map[string]any{"x": []any{want}}, enc)
		if err != nil {
			t.Fatal(err)
		}
		o, err := Decode(b, enc, DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		l, _ := o.Get("x")
		if got := l.([]any)[0]; !reflect.DeepEqual(got, want) {
			t.Errorf("encoding %d: got %+v, want %+v", enc, got, want)
		}
	}
}

func TestErrorTableIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range ErrorTable() {
		if seen[c.Code] || c.Status < 400 || c.Status > 599 || c.When == "" {
			t.Errorf("row %+v", c)
		}
		seen[c.Code] = true
	}
	// Every code of package node lands on a row.
	for _, code := range []string{fault.CodeNoPrompt, fault.CodeInvalidPrompt, fault.CodeNoOutputs, fault.CodeOutputsFailed, fault.CodeTooLarge, fault.CodeCancelled, fault.CodeOutOfMemory, fault.CodeFileMissing, fault.CodeFileOutsideRoot, fault.CodeBadCheckpoint, fault.CodeWrongFamily, fault.CodeTokenizer, fault.CodeBadImage, fault.CodeBadInput, fault.CodeDiskFull, fault.CodeDeadline, fault.CodePanic, fault.CodeInternal, fault.CodeUnknownHandle, fault.CodeUnknownClass} {
		e := errorOf(&fault.Failure{Code: code, Message: "m", Node: "3", Class: "K"})
		if !seen[e.Code] || e.Type != code || e.Node != "3" {
			t.Errorf("%s became %+v", code, e)
		}
	}
	if e := errorOf(errors.New("x")); e.Code != ErrInternal {
		t.Errorf("got %s for an unknown error, want %s", e.Code, ErrInternal)
	}
}

func FuzzMessages(f *testing.F) { messagesTarget().Fuzz(f) }

func holdsBytes(v any) bool { return anyValue(v, func(e any) bool { _, ok := e.([]byte); return ok }) }

func holdsOddNumber(v any) bool {
	return anyValue(v, func(e any) bool {
		switch f := e.(type) {
		case float64:
			return true // 3.0 in JSON is written as 3
		case nil, bool, string, int64, uint64, *pyjson.Object, []any:
			return false
		default:
			_ = f
			return true
		}
	})
}

// anyValue tells whether f holds for a value inside v.
func anyValue(v any, f func(any) bool) bool {
	if f(v) {
		return true
	}
	switch x := v.(type) {
	case []any:
		for _, e := range x {
			if anyValue(e, f) {
				return true
			}
		}
	case *pyjson.Object:
		for _, k := range x.Keys() {
			e, _ := x.Get(k)
			if anyValue(e, f) {
				return true
			}
		}
	}
	return false
}

// TestSameFilesSameJob: a request with several files is the same job every time, whatever order they come in.
func TestSameFilesSameJob(t *testing.T) {
	files := map[string][]byte{}
	for _, name := range []string{"a.png", "b.png", "c.png", "d.png", "e.png"} {
		files[name] = []byte(name)
	}
	hash := func(files map[string][]byte) string {
		req, w, fault := ParseRun(pyjson.NewObject("workflow", nodesOf("Wait 1"), "id", "j"))
		if fault != nil {
			t.Fatal(fault)
		}
		req.Inputs = files
		return hashOf(req, w)
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

// TestOtherTimesSameJob: priority, deadline and queue time say when a job is to be done; the job of an id stays the same with others, and is another one with
// another workflow or plan.
func TestOtherTimesSameJob(t *testing.T) {
	hash := func(workflow string, fields ...any) string {
		t.Helper()
		req, w, fault := ParseRun(pyjson.NewObject(append([]any{"workflow", nodesOf(workflow), "id", "j"}, fields...)...))
		if fault != nil {
			t.Fatal(fault)
		}
		return hashOf(req, w)
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
