package message

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// EmptyBodyHint is the error text for an empty body. The nats command silently sends one when its input is a pipe and
// --force-stdin is not given.
const EmptyBodyHint = "the body is empty; pass the workflow as an argument, or use --force-stdin with `nats req` " +
	"(without it, nats does not read a pipe)"

// ParseRun reads the body of run or submit in any of three shapes: our envelope {workflow, ...}, ComfyUI's POST /prompt
// body {prompt, ...}, or a bare graph, in API format (every value has a class_type) or in the editor's format. It
// generates an id if the body has none.
func ParseRun(o *pyjson.Object) (*RunRequest, *graph.Workflow, *fault.Error) {
	return ParseRunWithin(o, wire.DefaultLimits())
}

// ParseRunWithin is ParseRun with explicit limits for a workflow that is JSON text.
func ParseRunWithin(o *pyjson.Object, lim wire.Limits) (*RunRequest, *graph.Workflow, *fault.Error) {
	req := &RunRequest{}
	var targets any
	var err error
	switch {
	case isBareGraph(o):
		req.Workflow = o
	case HasField(o, "workflow"):
		if err = wire.Bind(o, req); err != nil {
			break
		}
		if bad := wire.UnknownField(o, reflect.TypeFor[RunRequest]()); bad != "" { // a misspelled plan must not be lost
			return nil, nil, wire.BadRequest(wire.BadField(bad,
				"is not known here and would be passed over: leave it out; there are %s", strings.Join(wire.Fields(req), ", ")))
		}
	case HasField(o, "prompt"):
		targets, err = bindComfy(o, req)
	case holdsNode(o):
		req.Workflow = o // validation names the values that are not nodes
	default:
		return nil, nil, fault.New(fault.NoPrompt,
			"no workflow in the body; send {\"workflow\": {...}}, ComfyUI's {\"prompt\": {...}}, or a bare graph in API format")
	}
	if e := (*fault.Error)(nil); errors.As(err, &e) {
		return nil, nil, e
	} else if err != nil {
		return nil, nil, wire.BadRequest(err)
	}
	if e := checkUnique(req); e != nil {
		return nil, nil, e
	}
	if req.ID == "" {
		req.ID = wire.NewID()
	}
	if !wire.ValidID(req.ID) {
		return nil, nil, fault.New(fault.BadRequest, "job id %q: an id is 1 to 64 of A-Z a-z 0-9 _ -", wire.Shown(req.ID))
	}
	if err := errors.Join(CheckMS("queue_ttl_ms", req.QueueTTLMS), CheckMS("deadline_ms", req.DeadlineMS),
		CheckMS("unique_ms", req.UniqueMS), checkTime("not_before", req.NotBefore)); err != nil {
		return nil, nil, wire.BadRequest(err)
	}
	if b, err := wire.Encode(req.Client, wire.JSON); err != nil || len(b) > maxClient {
		return nil, nil, fault.New(fault.TooLarge, "field client has %d bytes as JSON: it may have %d", len(b), maxClient)
	}
	if err := checkWebhook(req.Webhook); err != nil {
		return nil, nil, wire.BadRequest(err)
	}
	if req.TraceParent != "" && !TraceParent(req.TraceParent).IsValid() {
		return nil, nil, wire.BadRequest(wire.BadField("traceparent", "%q: want 00-TRACE-SPAN-FLAGS of W3C Trace Context, "+
			"with 32, 16 and 2 hexadecimal digits", wire.Shown(req.TraceParent)))
	}
	if PriorityRank(req.Priority) < 0 {
		return nil, nil, wire.BadRequest(wire.BadField("priority", "want high, normal or low, got %q",
			wire.Shown(req.Priority)))
	}
	if fail := convert(req, lim); fail != nil {
		return nil, nil, fail
	}
	w, fail := parseWorkflowWithin(req.Workflow, lim)
	if fail != nil {
		return nil, nil, fail
	}
	if targets != nil {
		if req.Targets, fail = w.Targets(targets); fail != nil {
			return nil, nil, fail
		}
	}
	return req, w, nil
}

// ParseWorkflow reads a graph given as a map or as JSON text (string or []byte), as a daemon sends it to its worker.
func ParseWorkflow(v any) (*graph.Workflow, *fault.Error) {
	return parseWorkflowWithin(v, wire.FrameLimits())
}

func parseWorkflowWithin(v any, lim wire.Limits) (*graph.Workflow, *fault.Error) {
	var text []byte
	switch x := v.(type) {
	case string:
		text = []byte(x)
	case []byte:
		text = x
	default:
		return graph.ParseWorkflow(v)
	}
	if err := wire.Guard(text, wire.JSON, lim); err != nil {
		return nil, &fault.Error{Code: fault.InvalidPrompt, Text: "workflow text was refused", Details: err.Error()}
	}
	return graph.ParseWorkflowJSON(text)
}

// maxClient bounds the field client, in bytes of JSON: the record of the job repeats it at every change.
const maxClient = 4096

// maxWebhook bounds the bytes of a URL in the field webhook.
const maxWebhook = 2000

// checkWebhook checks the form of a URL to which the end of a job is reported.
func checkWebhook(text string) error {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil
	case len(text) > maxWebhook:
		return wire.BadField("webhook", "has %d bytes: it may have %d", len(text), maxWebhook)
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil ||
		u.Fragment != "":
		return wire.BadField("webhook", "want https://HOST[:PORT]/PATH, without a user and a fragment")
	}
	return nil
}

// maxMS is the longest duration that a request may name, ten years: adding it to a date does not overflow.
const maxMS = 10 * 365 * 24 * 3600 * 1000

// CheckMS returns an error for a duration in milliseconds that is negative or over ten years.
func CheckMS(field string, ms int) error {
	if ms < 0 || ms > maxMS {
		return wire.BadField(field, "%d: want 0 to %d milliseconds", ms, maxMS)
	}
	return nil
}

// maxUnique bounds the bytes of unique_key.
const maxUnique = 256

// checkUnique checks that a request with unique_key names its job in no other way.
func checkUnique(req *RunRequest) *fault.Error {
	switch {
	case req.UniqueKey == "" && req.UniqueMS != 0:
		return wire.BadRequest(wire.BadField("unique_ms", "is for requests with unique_key"))
	case req.UniqueKey == "":
		return nil
	case len(req.UniqueKey) > maxUnique:
		return wire.BadRequest(wire.BadField("unique_key", "has %d bytes: it may have %d", len(req.UniqueKey), maxUnique))
	case req.ID != "":
		return wire.BadRequest(wire.BadField("unique_key", "makes the job's id: leave out id, prompt_id and Nats-Msg-Id"))
	case req.Reuse:
		return wire.BadRequest(wire.BadField("unique_key", "leave out reuse, which makes a job of its own"))
	}
	return nil
}

// checkTime checks a time in Unix milliseconds: 0, or between 2001, which a time in seconds is before, and 2286.
func checkTime(field string, ms int64) error {
	if ms != 0 && (ms < 1e12 || ms > 1e13) {
		return wire.BadField(field, "%d: want a time in milliseconds since 1970, from %.0f to %.0f", ms, 1e12, 1e13)
	}
	return nil
}

// bindComfy reads the body of ComfyUI's POST /prompt and returns its partial_execution_targets, whose meaning depends
// on the graph.
func bindComfy(o *pyjson.Object, req *RunRequest) (targets any, err error) {
	var body struct {
		Prompt   any            `json:"prompt"`
		ClientID any            `json:"client_id"`
		PromptID any            `json:"prompt_id"`
		Front    bool           `json:"front"`
		Extra    *pyjson.Object `json:"extra_data"`
		Targets  any            `json:"partial_execution_targets"`
	}
	if err := wire.Bind(o, &body); err != nil {
		return nil, err
	}
	req.Workflow, req.Client, req.Front = body.Prompt, body.ClientID, body.Front
	if id, isText := body.PromptID.(string); body.PromptID != nil {
		if !isText || !CanonicalUUID(id) {
			e := fault.At(fault.InvalidPromptID, "prompt_id", "prompt_id must be a valid UUID")
			e.Details = "prompt_id must be a UUID string in canonical lowercase hyphenated form; omit it to let the server " +
				"generate one"
			return nil, e
		}
		req.ID = id
	}
	if body.Extra != nil {
		if v, _ := body.Extra.Get("extra_pnginfo"); v != nil {
			p, ok := v.(*pyjson.Object)
			if !ok {
				return nil, wire.BadField("extra_data.extra_pnginfo", "want a map, got %s", wire.KindOf(v))
			}
			req.ExtraPNG = p
		}
		method, _ := body.Extra.At("preview_method").(string) // any other name means the server's preset, which is none
		req.Preview = slices.Contains([]string{"auto", "latent2rgb", "taesd"}, method)
		req.ExtraData = wire.Without(body.Extra, append(secretExtra(), "extra_pnginfo")...)
	}
	// Our own fields may stand beside ComfyUI's.
	return body.Targets, wire.Bind(wire.Without(o, "workflow", "extra_data"), req)
}

// secretExtra lists the keys of extra_data that hold credentials, which nothing here needs and nothing keeps.
func secretExtra() []string { return []string{"auth_token_comfy_org", "api_key_comfy_org"} }

// CanonicalUUID reports whether s is a UUID in lower-case hyphenated form.
func CanonicalUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		hyphen := i == 8 || i == 13 || i == 18 || i == 23
		if hyphen != (s[i] == '-') || !hyphen && !strings.ContainsRune("0123456789abcdef", rune(s[i])) {
			return false
		}
	}
	return true
}

// HasField reports whether o has a field of that name whose value is not a node of a bare graph.
func HasField(o *pyjson.Object, name string) bool {
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
	if slices.ContainsFunc(o.Keys(), func(k string) bool { return !isNode(o.At(k)) }) {
		return isEditorGraph(o)
	}
	return o.Len() > 0
}

// holdsNode reports whether any value is a node.
func holdsNode(o *pyjson.Object) bool {
	return slices.ContainsFunc(o.Keys(), func(k string) bool { return isNode(o.At(k)) })
}

// isEditorGraph reports whether o is in the format of ComfyUI's editor, see convert.
func isEditorGraph(o *pyjson.Object) bool {
	return HasField(o, "nodes") && HasField(o, "links")
}

// Hash identifies what a request asks for: two requests with the same id and the same hash are the same request.
// workflow is the JSON text of its graph.
func Hash(req *RunRequest, workflow string) string {
	c := *req
	c.ID, c.Workflow, c.Client, c.Tied, c.Front, c.Preview, c.Priority, c.Attempt, c.Inputs = "", cmp.Or(c.Undated,
		workflow), nil, false, false, false, "", 0, nil
	c.Validated = nil
	c.UniqueKey, c.UniqueMS, c.Number, c.ExtraData, c.Webhook, c.TraceParent = "", 0, 0, nil, "", ""
	c.DeadlineMS, c.QueueTTLMS, c.NotBefore = 0, 0, 0  // times do not change what is asked for
	c.Strict, c.Profile, c.Reuse = false, false, false // nor do checks, profiling and reuse
	b, err := wire.Encode(&c, wire.Msgpack)
	if err != nil { // the request was decoded from these very types
		panic("ipc: " + err.Error())
	}
	sum := sha256.New()
	_, _ = sum.Write(b)                                         // never fails
	for _, name := range slices.Sorted(maps.Keys(req.Inputs)) { // the encoder does not sort them
		data := req.Inputs[name]
		_, _ = fmt.Fprintf(sum, "%d %s %d ", len(name), name, len(data))
		_, _ = sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// ClientName returns the name under which the jobs of a client are counted: the user that its reply subject belongs to
// (from), if known, or else the name that the request gives in client (text, or a map with id). Clients without a name
// are counted together.
func ClientName(from string, req *RunRequest) string {
	given, _ := req.Client.(string)
	if c, ok := req.Client.(*pyjson.Object); ok {
		given, _ = c.At("id").(string)
	}
	name := cmp.Or(from, given)
	return name[:min(len(name), 128)]
}
