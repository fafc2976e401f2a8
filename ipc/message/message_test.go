package message_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/engine/datafile"
	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
)

func TestParseRunShapes(t *testing.T) {
	const uuid = "0d1f7a36-4c55-7bd0-9c0e-2f6f4c1b8a01"
	g := messagetest.Graph("Wait 1", "Picture 5")
	for name, body := range map[string]*pyjson.Object{
		"envelope": pyjson.NewObject("id", "j1", "workflow", g),
		"envelope text": pyjson.NewObject("id", "j1", "workflow",
			`{"1":{"class_type":"Wait","inputs":{"n":1}},"2":{"class_type":"Picture","inputs":{"n":5}}}`),
		"comfyui": pyjson.NewObject("prompt", g, "prompt_id", uuid, "client_id", "c", "extra_data",
			pyjson.NewObject("extra_pnginfo", pyjson.NewObject("workflow", pyjson.NewObject("nodes", []any{}))), "front", true),
	} {
		req, w, err := message.ParseRun(body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		id := map[bool]string{false: "j1", true: uuid}[name == "comfyui"]
		if req.ID != id || w.Len() != 2 || w.Class("2") != "Picture" {
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

// TestPromptBodiesAsComfyUI compares the answers about ids, targets and bodies without a prompt with those of the
// server of tests/golden/server.
func TestPromptBodiesAsComfyUI(t *testing.T) {
	type record struct {
		Cases []struct {
			Name    string
			Status  int
			Request struct{ Body string }
			Answer  struct {
				Error struct{ Type, Message, Details string }
			} `json:"response"`
		}
	}
	var file record
	if err := golden.JSON("server/validation.json", &file); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, c := range file.Cases {
		if !strings.HasPrefix(c.Name, "new_id_") && !strings.HasPrefix(c.Name, "prompt_id_") {
			continue
		}
		body, err := wire.Decode([]byte(c.Request.Body), wire.JSON, wire.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		seen++
		_, _, fail := message.ParseRun(body)
		switch want := c.Answer.Error; {
		case c.Status == 200 && fail != nil:
			t.Errorf("%s: refused: %v", c.Name, fail)
		case c.Status == 400 && (fail == nil || fail.Code != want.Type):
			t.Errorf("%s: got %+v, want %s", c.Name, fail, want.Type)
		case c.Status == 400 && want.Type == "invalid_prompt_id" &&
			(fail.Text != want.Message || fail.Details != want.Details):
			t.Errorf("%s: got %+v, want %+v", c.Name, fail, want)
		}
	}
	if seen < 12 {
		t.Errorf("compared %d bodies", seen)
	}
	g := messagetest.Graph("Wait 1", "Picture 5")
	for _, c := range []struct {
		targets any
		want    []string
	}{
		{nil, nil},
		{[]any{}, []string{}},
		{[]any{"2", int64(1)}, []string{"2"}},
		{"3,2", []string{"2"}},
	} {
		req, _, fail := message.ParseRun(pyjson.NewObject("prompt", g, "partial_execution_targets", c.targets))
		if fail != nil || !reflect.DeepEqual(req.Targets, c.want) {
			t.Errorf("targets %v: got %v and %v, want %v", c.targets, req, fail, c.want)
		}
	}
}

// TestEditorGraphs checks that every shape of a body may hold a graph in the editor's format, and that saved pictures
// keep it.
func TestEditorGraphs(t *testing.T) {
	const text = `{"nodes": [{"id": 3, "type": "EmptyLatentImage", "widgets_values": [64, 64, 1]},
		{"id": 4, "type": "Elsewhere", "widgets_values": [7], "inputs": [{"name": "a", "type": "LATENT", "link": 1}]}],
		"links": [[1, 3, 0, 4, 0, "LATENT"]]}`
	g, err := pyjson.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	info, err := pyjson.Decode([]byte(`{"Elsewhere": {"input": {"required": {"a": ["LATENT"], "n": ["INT", {}]}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]*pyjson.Object{
		"envelope": pyjson.NewObject("workflow", g, "object_info", info), "text": pyjson.NewObject("workflow", text,
			"object_info", info), "prompt": pyjson.NewObject("prompt", g, "object_info", info),
	} {
		req, w, fail := message.ParseRun(body)
		if fail != nil {
			t.Errorf("%s: %v", name, fail)
			continue
		}
		want := `{"3": {"inputs": {"width": 64, "height": 64, "batch_size": 1}, "class_type": "EmptyLatentImage", "_meta": ` +
			`{"title": "Empty Latent Image"}}, "4": {"inputs": {"n": 7, "a": ["3", 0]}, "class_type": "Elsewhere", ` +
			`"_meta": {"title": "Elsewhere"}}}`
		if got := string(w.JSON()); got != want || req.ObjectInfo != nil {
			t.Errorf("%s: got %s, want %s; object_info left: %v", name, got, want, req.ObjectInfo != nil)
		}
		if saved, _ := req.ExtraPNG.Get("workflow"); pyjson.Repr(saved) != pyjson.Repr(g) {
			t.Errorf("%s: the picture would carry %v", name, saved)
		}
	}
	if _, _, fail := message.ParseRun(g.(*pyjson.Object)); fail == nil || fail.Code != fault.MissingNodeType {
		t.Errorf("a class without a description: %v", fail)
	}
}

func TestParseRunRefuses(t *testing.T) {
	g := messagetest.Graph("Wait 1")
	for name, c := range map[string]struct {
		body *pyjson.Object
		code string
		says string
	}{
		"nothing":        {pyjson.NewObject(), fault.BadRequest, "workflow"},
		"other fields":   {pyjson.NewObject("foo", int64(1)), fault.BadRequest, "workflow"},
		"bad id":         {pyjson.NewObject("workflow", g, "id", "a.b"), fault.BadRequest, "A-Z"},
		"long id":        {pyjson.NewObject("workflow", g, "id", strings.Repeat("a", 65)), fault.BadRequest, "64"},
		"id of a number": {pyjson.NewObject("workflow", g, "id", int64(3)), fault.BadRequest, "field id"},
		"a typo":         {pyjson.NewObject("workflow", g, "plna", "ulysses=2"), fault.BadRequest, "plna"},
		"strict":         {pyjson.NewObject("workflow", g, "strict", true, "plam", "x"), fault.BadRequest, "plam"},
		"negative time":  {pyjson.NewObject("workflow", g, "deadline_ms", int64(-1)), fault.BadRequest, "want 0 to"},
		"editor format":  {pyjson.NewObject("nodes", int64(1), "links", []any{}), fault.BadWorkflow, "API format"},
		"group node": {
			pyjson.NewObject("nodes", []any{pyjson.NewObject("id", int64(1), "type", "workflow>x")}, "links", []any{}),
			fault.BadWorkflow, "group node",
		},
		"workflow list": {pyjson.NewObject("workflow", []any{int64(1)}), fault.BadWorkflow, "object"},
		"workflow text": {pyjson.NewObject("workflow", strings.Repeat("[", 1e6)), fault.BadWorkflow, "nested"},
		"extra_pnginfo": {
			pyjson.NewObject("prompt", g, "extra_data", pyjson.NewObject("extra_pnginfo", "x")),
			fault.BadRequest, "extra_pnginfo",
		},
	} {
		_, _, err := message.ParseRun(c.body)
		if err == nil || err.Public() != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want code %s and %q in the text", name, err, c.code, c.says)
		}
	}
}

func TestMessagesReadBackInBothEncodings(t *testing.T) {
	rec := message.Record{
		V: 1, Job: "j", State: message.Failed, Rev: 7, Attempt: 2, Created: 5, Hash: "h",
		Error:   fault.New(fault.NoModel, "no file"),
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

// TestChangedFileToClient checks what clients see of a file that was cut while it was read.
func TestChangedFileToClient(t *testing.T) {
	changed := fmt.Errorf("load: %w", datafile.Changed("models/x.safetensors", errors.New("it was cut")))
	for _, err := range []error{
		fault.Wrap(fault.BadCheckpoint, "model", changed),
		fault.From(fault.At(fault.FileChanged, "model", "%v", changed)),
	} {
		f := fault.From(err).Form()
		if f.Code != "file_changed" || f.Status != 503 || !f.Retryable || f.Input != "model" ||
			!strings.Contains(f.Message, "models/x.safetensors: it was cut") {
			t.Errorf("a file cut while it was read became %+v", f)
		}
	}
}

// TestSameFilesSameJob checks that a request with several files is the same job in whatever order they come.
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
		return message.Hash(req, string(w.JSON()))
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

// TestOtherTimesSameJob checks that the job of an id stays the same with another priority, deadline or queue time, and
// is another one with another workflow or plan.
func TestOtherTimesSameJob(t *testing.T) {
	hash := func(workflow string, fields ...any) string {
		t.Helper()
		req, w, fault := message.ParseRun(pyjson.NewObject(append([]any{"workflow", messagetest.Graph(workflow), "id", "j"},
			fields...)...))
		if fault != nil {
			t.Fatal(fault)
		}
		return message.Hash(req, string(w.JSON()))
	}
	want := hash("Wait 1")
	if got := hash("Wait 1", "priority", "high", "deadline_ms", int64(5000), "queue_ttl_ms", int64(60000)); got != want {
		t.Error("other times make another job")
	}
	if got := hash("Wait 1", "strict", true, "profile", true); got != want {
		t.Error("strict or profile makes another job")
	}
	for name, got := range map[string]string{"workflow": hash("Wait 2"), "plan": hash("Wait 1", "plan", "ulysses=2")} {
		if got == want {
			t.Errorf("another %s is the same job", name)
		}
	}
}

// TestJobRefusalsNameTheField checks that errors of run and submit have the path of the field in Input.
func TestJobRefusalsNameTheField(t *testing.T) {
	g := messagetest.Graph("Wait 1")
	for field, body := range map[string]*pyjson.Object{
		"id":                       pyjson.NewObject("workflow", g, "id", int64(3)),
		"priority":                 pyjson.NewObject("workflow", g, "priority", "urgent"),
		"front":                    pyjson.NewObject("prompt", g, "front", "yes"),
		"tied":                     pyjson.NewObject("prompt", g, "tied", int64(1)),
		"extra_data.extra_pnginfo": pyjson.NewObject("prompt", g, "extra_data", pyjson.NewObject("extra_pnginfo", "x")),
	} {
		if _, _, err := message.ParseRun(body); err == nil || err.Public() != fault.BadRequest || err.Field != field {
			t.Errorf("%s: got %+v", field, err)
		}
	}
}

// TestMasksOfText checks that a mask of text counts its first tokens, in every dtype, and is [1, Lt] like the text.
func TestMasksOfText(t *testing.T) {
	for _, c := range []struct {
		dtype string
		data  string
		shape []int
		want  int // 0: refused
	}{
		{"u8", "\x01\x00", []int{1, 2}, 1},
		{"u8", "\x01\xff", []int{1, 2}, 2},
		{"i64", "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", []int{1, 2}, 1},
		{"i64", "\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80", []int{1, 2}, 2},
		{"f16", "\x00\x3c\x00\x00", []int{1, 2}, 1},
		{"u8", "\x00\x01", []int{1, 2}, 0},
		{"u8", "\x01\x00", []int{2}, 0},
		{"u8", "\x01\x00", []int{2, 1}, 0},
		{"u8", "\x01\x00", []int{1, 1, 2}, 0},
		{"f16", "\x00\x3c\x00\x00", []int{2, 1}, 0},
		{"u8", "\x01", []int{1, 1}, 0},
		{"u8", "\x01\x01\x00", []int{1, 3}, 0},
	} {
		q := messagetest.Sample()
		q.Conds.Positive[0].ModelConds["attention_mask"] = &wire.Tensor{Tensor: array.Tensor{
			DType: c.dtype, Shape: c.shape, Data: []byte(c.data),
		}}
		got, err := q.Lower(message.TensorReader{})
		if c.want == 0 {
			if err == nil || wire.BadRequest(err).Field != "conds.positive[0].model_conds.attention_mask" {
				t.Errorf("%s %v %q: got %v, want the mask refused", c.dtype, c.shape, c.data, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %v %q: %v", c.dtype, c.shape, c.data, err)
		} else if n := got.Request.Branches[0].Entries[0].ContextLen; n != c.want {
			t.Errorf("%s %v %q: %d tokens, want %d", c.dtype, c.shape, c.data, n, c.want)
		}
	}
}

// TestDatesSameJob checks that an editor's graph with a date in a file name is the same job whatever time it is: its
// hash goes by the graph, not by the text of its conversion.
func TestDatesSameJob(t *testing.T) {
	parse := func(prefix string) *message.RunRequest {
		t.Helper()
		graph, err := pyjson.Decode([]byte(`{"nodes": [
			{"id": 1, "type": "EmptyImage", "widgets_values": [64, 64, 1, 0]},
			{"id": 2, "type": "SaveImage", "widgets_values": ["` + prefix + `"],
				"inputs": [{"name": "images", "type": "IMAGE", "link": 1}]}],
			"links": [[1, 1, 0, 2, 0, "IMAGE"]]}`))
		if err != nil {
			t.Fatal(err)
		}
		req, w, failure := message.ParseRun(pyjson.NewObject("workflow", graph, "id", "j"))
		if failure != nil {
			t.Fatal(failure)
		}
		if text := string(w.JSON()); strings.Contains(text, "%date") {
			t.Errorf("a date is left in %s", text)
		}
		return req
	}
	dated := parse("%date:yyyy-MM-dd hhmmss%")
	want := message.Hash(dated, "converted now")
	if message.Hash(dated, "converted later") != want {
		t.Error("another time makes another job")
	}
	if message.Hash(parse("%date:yyyy%"), "converted now") == want {
		t.Error("another file name is the same job")
	}
	if plain := parse("x"); message.Hash(plain, "a") == message.Hash(plain, "b") {
		t.Error("another workflow is the same job")
	}
}
