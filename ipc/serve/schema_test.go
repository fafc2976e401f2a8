package serve_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

const schemaFile = "../../docs/protocol.schema.json"

// TestSchemaFileIsTrue compares docs/protocol.schema.json with the structs; PATCHBAY_WRITE_SCHEMA=1 writes it.
func TestSchemaFileIsTrue(t *testing.T) {
	want, err := json.MarshalIndent(serve.Schema(), "", " ")
	want = append(want, '\n')
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("PATCHBAY_WRITE_SCHEMA") != "" {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes and is not what the structs give (%d bytes); write it with PATCHBAY_WRITE_SCHEMA=1 go "+
			"test ./ipc/serve -run TestSchema", schemaFile, len(got), len(want))
	}
}

// TestSchemaIsServed checks that describe returns the schema, and that encoded messages have the fields that it allows
// and requires.
func TestSchemaIsServed(t *testing.T) {
	c := ipctest.DialRig(t, ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{}))
	var out struct {
		Schema *pyjson.Object `json:"schema"`
	}
	if err := client.AskOne(t.Context(), c, message.VerbDescribe, "", message.DescribeRequest{Schema: true},
		&out); err != nil {
		t.Fatal(err)
	}
	defs, _ := out.Schema.Get("$defs")
	for name, message := range map[string]any{
		"sample.request": smallSample("euler"), "sample.reply": &message.SampleReply{}, "receipt": message.Receipt{},
		"event":        message.Event{Error: fault.New(fault.Internal, "x")},
		"status.reply": message.RecordReply{}, "load.request": message.LoadRequest{},
		"error.reply": wire.BodyOf(fault.New(fault.Internal, "x")),
	} {
		b, err := wire.Encode(message, wire.JSON)
		if err != nil {
			t.Fatal(err)
		}
		o, err := wire.Decode(b, wire.JSON, wire.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		def, _ := defs.(*pyjson.Object).Get(name)
		if def == nil {
			t.Fatalf("no schema of %s", name)
		}
		props, _ := def.(*pyjson.Object).Get("properties")
		for _, k := range o.Keys() {
			if _, ok := props.(*pyjson.Object).Get(k); !ok {
				t.Errorf("%s is sent with %s, the schema has %v", name, k, props.(*pyjson.Object).Keys())
			}
		}
		required, _ := def.(*pyjson.Object).Get("required")
		list, _ := required.([]any)
		for _, k := range list {
			if !slices.Contains(o.Keys(), k.(string)) {
				t.Errorf("%s is sent without %s, which the schema requires", name, k)
			}
		}
	}
}

// TestStrictVerbsAreThoseThatRefuse checks that a verb refuses unknown fields of any body unless its row, from which
// the schema is made, says otherwise.
func TestStrictVerbsAreThoseThatRefuse(t *testing.T) {
	c := ipctest.DialRig(t, ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{}))
	for _, v := range message.Verbs() {
		var e *fault.Error
		err := client.AskOne(t.Context(), c, v.Name, "", map[string]any{"spare": 1}, &struct{}{})
		if refuses := errors.As(err, &e) && e.Field == "spare"; refuses == v.Lenient {
			t.Errorf("%s: it is said to be lenient: %t, and answers %v", v.Name, v.Lenient, err)
		}
	}
}
