package ipc

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// emptyBodyHint is the text for an empty body. The nats command sends one silently when its input is a pipe and --force-stdin is not given.
const emptyBodyHint = "the body is empty; pass the workflow as an argument, or use --force-stdin with `nats req` (without it, nats does not read a pipe)"

// ParseRun reads the body of run or submit in any of three shapes: our envelope {workflow, ...}, ComfyUI's POST /prompt body {prompt, ...}, or a
// bare API-format graph, in which every value has a class_type. It fills the id if there is none.
func ParseRun(o *pyjson.Object) (*RunRequest, *graph.Workflow, *Error) {
	return parseRun(o, DefaultLimits())
}

// parseRun is ParseRun with limits of its own for a workflow that is JSON text.
func parseRun(o *pyjson.Object, lim Limits) (*RunRequest, *graph.Workflow, *Error) {
	req := &RunRequest{}
	var err error
	switch {
	case isBareGraph(o):
		req.Workflow = o
	case holds(o, "workflow"):
		err = Bind(o, req)
		if err == nil && req.Strict {
			if extra := unknownFields(o, req); len(extra) > 0 {
				err = fmt.Errorf("unknown fields %s (strict is set)", shown(strings.Join(extra, ", ")))
			}
		}
	case holds(o, "prompt"):
		err = bindComfy(o, req)
	case holdsNode(o):
		req.Workflow = o // validation names what is no node
	default:
		return nil, nil, Errorf(ErrBadRequest, "no workflow in the body; send {\"workflow\": {...}}, ComfyUI's {\"prompt\": {...}}, or a bare graph in API format")
	}
	if err != nil {
		return nil, nil, Errorf(ErrBadRequest, "%s", err.Error())
	}
	if req.ID == "" {
		req.ID = NewJobID()
	}
	if !validID(req.ID) {
		return nil, nil, Errorf(ErrBadRequest, "job id %q: an id is 1 to 64 of A-Z a-z 0-9 _ -", shown(req.ID))
	}
	if req.QueueTTLMS < 0 || req.DeadlineMS < 0 {
		return nil, nil, Errorf(ErrBadRequest, "queue_ttl_ms and deadline_ms are not negative")
	}
	if rank(req.Priority) < 0 {
		return nil, nil, Errorf(ErrBadRequest, "field priority: want high, normal or low, got %q", shown(req.Priority))
	}
	w, fail := parseWorkflowWithin(req.Workflow, lim)
	if fail != nil {
		return nil, nil, errorOf(fail)
	}
	return req, w, nil
}

// parseWorkflow takes a graph as a map or as JSON text.
func parseWorkflow(v any) (*graph.Workflow, *fault.Failure) {
	return parseWorkflowWithin(v, DefaultLimits())
}

func parseWorkflowWithin(v any, lim Limits) (*graph.Workflow, *fault.Failure) {
	var text []byte
	switch x := v.(type) {
	case string:
		text = []byte(x)
	case []byte:
		text = x
	default:
		return graph.ParseWorkflow(v)
	}
	if err := Guard(text, JSON, lim); err != nil {
		return nil, &fault.Failure{Code: fault.CodeInvalidPrompt, Message: "workflow text was refused", Details: err.Error()}
	}
	return graph.ParseWorkflowJSON(text)
}

// bindComfy reads the body of ComfyUI's POST /prompt.
func bindComfy(o *pyjson.Object, req *RunRequest) error {
	var body struct {
		Prompt   any            `json:"prompt"`
		ClientID any            `json:"client_id"`
		PromptID any            `json:"prompt_id"`
		Front    bool           `json:"front"`
		Extra    *pyjson.Object `json:"extra_data"`
		Targets  []string       `json:"partial_execution_targets"`
	}
	if err := Bind(o, &body); err != nil {
		return err
	}
	req.Workflow, req.Client, req.Front, req.Targets = body.Prompt, body.ClientID, body.Front, body.Targets
	switch id := body.PromptID.(type) { // ComfyUI takes str() of anything
	case nil:
	case string:
		req.ID = id
	case int64:
		req.ID = strconv.FormatInt(id, 10)
	default:
		return fmt.Errorf("field prompt_id: want a string, got %s", kindOf(id))
	}
	if body.Extra != nil {
		if v, _ := body.Extra.Get("extra_pnginfo"); v != nil {
			p, ok := v.(*pyjson.Object)
			if !ok {
				return fmt.Errorf("field extra_data.extra_pnginfo: want a map, got %s", kindOf(v))
			}
			req.ExtraPNG = p
		}
		if v, _ := body.Extra.Get("preview_method"); v != nil && v != "none" {
			req.Preview = true
		}
	}
	// Fields of ours may stand beside ComfyUI's.
	return Bind(without(o, "workflow"), req)
}

func without(o *pyjson.Object, name string) *pyjson.Object {
	out := pyjson.NewObject()
	for _, k := range o.Keys() {
		if k != name {
			v, _ := o.Get(k)
			out.Set(k, v)
		}
	}
	return out
}

// holds tells whether o has a field that is not a node of a bare graph.
func holds(o *pyjson.Object, name string) bool {
	v, ok := o.Get(name)
	return ok && !isNode(v)
}

func isNode(v any) bool {
	n, ok := v.(*pyjson.Object)
	if !ok {
		return false
	}
	_, ok = n.Get("class_type")
	return ok
}

func isBareGraph(o *pyjson.Object) bool {
	for _, k := range o.Keys() {
		if v, _ := o.Get(k); !isNode(v) {
			return isEditorGraph(o)
		}
	}
	return o.Len() > 0
}

// holdsNode tells whether any value is a node.
func holdsNode(o *pyjson.Object) bool {
	for _, k := range o.Keys() {
		if v, _ := o.Get(k); isNode(v) {
			return true
		}
	}
	return false
}

// isEditorGraph recognises the editor's own format, which package node refuses with the way out.
func isEditorGraph(o *pyjson.Object) bool {
	return holds(o, "nodes") && holds(o, "links")
}

// NewJobID returns a fresh id that sorts by time (ULID).
func NewJobID() string {
	return strings.ToLower(ulid.MustNew(ulid.Timestamp(time.Now()), rand.Reader).String())
}

// validID tells whether s may be a token of a subject and a file name.
func validID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// hashOf identifies what a request asks for: two requests of one id with the same hash are the same request.
func hashOf(req *RunRequest, w *graph.Workflow) string {
	c := *req
	c.ID, c.Workflow, c.Client, c.Tied, c.Front, c.Preview, c.Priority, c.Attempt, c.Inputs = "", string(w.JSON()), nil, false, false, false, "", 0, nil
	c.DeadlineMS, c.QueueTTLMS = 0, 0 // when it is to be done is not what is asked for
	b, err := Encode(&c, Msgpack)
	if err != nil { // the request was decoded from these very types
		panic("ipc: " + err.Error())
	}
	sum := sha256.New()
	_, _ = sum.Write(b)                                         // a hash does not fail
	for _, name := range slices.Sorted(maps.Keys(req.Inputs)) { // the encoder writes them in any order
		data := req.Inputs[name]
		_, _ = fmt.Fprintf(sum, "%d %s %d ", len(name), name, len(data))
		_, _ = sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
