package fault_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"reflect"
	"strconv"
	"syscall"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/fault"
)

// constants returns the values of all constants in codes.go.
func constants(t *testing.T) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
			for _, s := range d.Specs {
				value, err := strconv.Unquote(s.(*ast.ValueSpec).Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, value)
			}
		}
		return true
	})
	return out
}

// TestEveryCodeHasARow checks that no code is missing from the table, and that every row leads to a code that clients
// know.
func TestEveryCodeHasARow(t *testing.T) {
	public := map[string]bool{}
	for _, r := range fault.Public() {
		if public[r.Code] || r.Public != r.Code || r.Status < 400 || r.Status > 599 {
			t.Errorf("row %+v", r)
		}
		public[r.Code] = true
	}
	all := constants(t)
	if len(all) < 50 {
		t.Errorf("found %d constants", len(all))
	}
	for _, code := range all {
		if r := fault.RowOf(code); r.Code != code || r.When == "" || !public[r.Public] {
			t.Errorf("code %s has the row %+v", code, r)
		}
	}
}

// TestCodesToClients compares what clients see of each finer code with docs/protocol.md and the types that ComfyUI and
// earlier versions send.
func TestCodesToClients(t *testing.T) {
	for public, codes := range map[string][]string{
		"bad_request 400 false": {"no_prompt", "invalid_prompt_id", "file_outside_root"},
		"bad_workflow 422 false": {
			"invalid_prompt", "missing_node_type", "prompt_no_outputs",
			"prompt_outputs_failed_validation", "workflow_format_ui", "required_input_missing", "bad_linked_input",
			"return_type_mismatch", "invalid_input_type", "value_smaller_than_min", "value_bigger_than_max", "value_not_in_list",
			"custom_validation_failed", "exception_during_validation", "exception_during_inner_validation", "dependency_cycle",
			"link_expected", "bad_input",
		},
		"too_large 413 false":          {"workflow_too_large"},
		"no_such_model 404 false":      {"file_missing", "tokenizer_missing"},
		"unsupported_format 415 false": {"bad_checkpoint", "wrong_family", "bad_image"},
		"no_such_handle 404 false":     {"unknown_handle"},
		"no_such_node_type 404 false":  {"unknown_class"},
		"deadline 504 false":           {"deadline_exceeded"},
		"worker_lost 500 true":         {"host_lost"},
		"internal 500 false":           {"internal_panic", "internal", "rank_lost", "device_lost"},
		"out_of_memory 507 false":      {"out_of_memory"},
		"plan_refused 422 false":       {"plan_refused"},
		"disk_full 507 true":           {"disk_full"},
		"file_changed 503 true":        {"file_changed"},
	} {
		for _, code := range codes {
			f := fault.New(code, "x").Form()
			if got := fmt.Sprintf("%s %d %t", f.Code, f.Status, f.Retryable); got != public {
				t.Errorf("%s reaches clients as %s, want %s", code, got, public)
			}
			want := code
			switch code {
			case "rank_lost":
				want = "internal"
			case "device_lost":
				want = "internal_panic"
			}
			if f.Type != want {
				t.Errorf("%s has the type %q for clients, want %q", code, f.Type, want)
			}
		}
	}
	for _, code := range []string{"cancelled", "deadline", "bad_request", "worker_lost", "queue_full"} {
		if f := fault.New(code, "x").Form(); f.Type != "" || f.Code != code {
			t.Errorf("%s reaches clients as %+v, want no type", code, f)
		}
	}
}

// full returns an error with all that clients see.
func full() *fault.Error {
	return &fault.Error{
		Code: fault.BadCheckpoint, Text: "model: <a> & b", Details: "d", Node: "3", Class: "K", Field: "model",
		Extra: map[string]any{"n": "x"}, RetryAfterMS: 5, Stack: "one\ntwo", Cause: io.EOF,
	}
}

// TestErrorIsWrittenAsBefore compares the JSON of an error, whose order of fields and characters clients may rely on.
func TestErrorIsWrittenAsBefore(t *testing.T) {
	const want = `{"code":"unsupported_format","status":415,"type":"bad_checkpoint","message":"model: <a> & b",` +
		`"details":"d","node":"3","class_type":"K","input":"model","extra_info":{"n":"x"},"retryable":false,` +
		`"retry_after_ms":5,"trace":["one","two"]}` + "\n"
	if got, err := full().MarshalJSON(); err != nil || string(got) != want {
		t.Errorf("got %s %v\nwant %s", got, err, want)
	}
	if got, err := json.Marshal(fault.New(fault.FileChanged, "x")); err != nil || string(got) !=
		`{"code":"file_changed","status":503,"type":"file_changed","message":"x","retryable":true}` {
		t.Errorf("got %s %v", got, err)
	}
}

// TestErrorReadsBack checks that an error loses only its cause on its way to a client, and not even its exact code
// between processes of ranks.
func TestErrorReadsBack(t *testing.T) {
	want := full()
	want.Cause = nil
	text, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	got := &fault.Error{}
	if err := json.Unmarshal(text, got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("as JSON: got %+v %v, want %+v", got, err, want)
	}
	for _, code := range constants(t) {
		want.Code = code
		b, err := msgpack.Marshal(map[string]*fault.Error{"err": want, "none": nil})
		if err != nil {
			t.Fatal(err)
		}
		var back map[string]*fault.Error
		if err := msgpack.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back["err"], want) || back["none"] != nil {
			t.Errorf("between ranks: got %+v %v, want %+v", back, err, want)
		}
	}
	if e := (fault.Form{Code: "later", Type: "unknown", Status: 418, Message: "m"}).Fault(); e.Public() != "later" {
		t.Errorf("a code of another version became %+v", e)
	}
}

// TestFrom checks the codes of errors that have none, and that From keeps all of one that has.
func TestFrom(t *testing.T) {
	for want, err := range map[string]error{
		fault.Cancelled:        fmt.Errorf("ended: %w", context.Canceled),
		fault.DeadlineExceeded: context.DeadlineExceeded,
		fault.DiskFull:         fmt.Errorf("write: %w", syscall.ENOSPC),
		fault.Internal:         errors.New("x"),
		fault.FileChanged:      fault.Wrap(fault.BadCheckpoint, "f", fault.New(fault.FileChanged, "cut")),
	} {
		if e := fault.From(err); e.Code != want || e.Text != err.Error() || !errors.Is(e, errors.Unwrap(e)) {
			t.Errorf("%v became %+v, want %s", err, e, want)
		}
	}
	if fault.From(nil) != nil || fault.From((*fault.Error)(nil)) != nil {
		t.Error("no error became one")
	}
	inner := &fault.Error{Code: fault.Panic, Text: "panic in rank 1", Field: "plan", Stack: "stack"}
	e := fault.From(fmt.Errorf("sampler euler: %w", inner))
	if e.Text != "sampler euler: panic in rank 1" || e.Code != fault.Panic || e.Field != "plan" || e.Stack != "stack" {
		t.Errorf("got %+v", e)
	}
	if e.Node = "7"; inner.Node != "" {
		t.Error("From did not copy")
	}
	if e := fault.From(fmt.Errorf("job: %w", full())); e.Text != full().Text || e.Node != "3" || e.Details != "d" {
		t.Errorf("got %+v", e)
	}
}
