package fault

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
)

// Form is an Error as clients see it (docs/protocol.md): the value of "error" in every error reply and in the terminal
// event of a failed job. What follows from the code is written out.
type Form struct {
	Code         string         `json:"code"`
	Status       int            `json:"status"`
	Type         string         `json:"type,omitempty"`
	Message      string         `json:"message"`
	Details      string         `json:"details,omitempty"`
	Node         string         `json:"node,omitempty"`
	Class        string         `json:"class_type,omitempty"`
	Input        string         `json:"input,omitempty"`
	Extra        map[string]any `json:"extra_info,omitempty"`
	Retryable    bool           `json:"retryable"`
	RetryAfterMS int            `json:"retry_after_ms,omitempty"`
	Trace        []string       `json:"trace,omitempty"`

	// Exact is Error.Code. Only processes of ranks send it, whose encoder does not use these tags.
	Exact string `json:"-"`
}

// Form returns the error as clients see it. NodeErrors stand beside it, as in ComfyUI's body.
func (e *Error) Form() Form {
	r := RowOf(e.Code)
	f := Form{
		Code: r.Public, Status: r.Status, Type: r.Type, Message: e.Text, Details: e.Details, Node: e.Node, Class: e.Class,
		Input: e.Field, Extra: e.Extra, Retryable: r.Retryable, RetryAfterMS: e.RetryAfterMS, Exact: e.Code,
	}
	if stack := strings.TrimSpace(e.Stack); stack != "" {
		f.Trace = strings.Split(stack, "\n")
	}
	return f
}

// Fault returns the error that a form was made of, without its cause.
func (f Form) Fault() *Error {
	code := f.Exact
	if code == "" {
		code = f.Code
		if r, ok := table[f.Type]; ok && r.Public == f.Code {
			code = r.Code
		}
	}
	return &Error{
		Code: code, Text: f.Message, Details: f.Details, Node: f.Node, Class: f.Class, Field: f.Input, Extra: f.Extra,
		RetryAfterMS: f.RetryAfterMS, Stack: strings.Join(f.Trace, "\n"),
	}
}

// MarshalJSON writes the form.
func (e *Error) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // the encoder around this one decides
	err := enc.Encode(e.Form())
	return b.Bytes(), err
}

// UnmarshalJSON reads the form.
func (e *Error) UnmarshalJSON(b []byte) error {
	var f Form
	err := json.Unmarshal(b, &f)
	*e = *f.Fault()
	return err
}

func (e *Error) EncodeMsgpack(enc *msgpack.Encoder) error { return enc.Encode(e.Form()) }

// DecodeMsgpack reads the form.
func (e *Error) DecodeMsgpack(dec *msgpack.Decoder) error {
	var f Form
	err := dec.Decode(&f)
	*e = *f.Fault()
	return err
}
