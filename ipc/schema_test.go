package ipc

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"patchbay/node/pyjson"
)

const schemaFile = "../docs/protocol.schema.json"

// TestSchemaFileIsTrue compares docs/protocol.schema.json with the structs; PATCHBAY_WRITE_SCHEMA=1 writes it.
func TestSchemaFileIsTrue(t *testing.T) {
	want, err := SchemaText()
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
		t.Errorf("%s has %d bytes and is not what the structs give (%d bytes); write it with PATCHBAY_WRITE_SCHEMA=1 go test ./ipc -run TestSchema", schemaFile, len(got), len(want))
	}
}

// TestSchemaIsServed asks for it, and compares it with messages as they are encoded.
func TestSchemaIsServed(t *testing.T) {
	c := dialRig(t, newRig(t, JobsConfig{}, ShelfConfig{}))
	var out struct {
		Schema *pyjson.Object `json:"schema"`
	}
	if err := askOne(t.Context(), c, VerbDescribe, "", describeRequest{Schema: true}, &out); err != nil {
		t.Fatal(err)
	}
	defs, _ := out.Schema.Get("$defs")
	for name, message := range map[string]any{
		"sample.request": smallSample("euler"), "sample.reply": &SampleReply{}, "receipt": Receipt{}, "event": Event{Error: Errorf(ErrInternal, "x")},
		"status.reply": recordReply{}, "load.request": LoadRequest{}, "error.reply": Errorf(ErrInternal, "x").body(),
	} {
		b, err := Encode(message, JSON)
		if err != nil {
			t.Fatal(err)
		}
		o, err := Decode(b, JSON, DefaultLimits())
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
