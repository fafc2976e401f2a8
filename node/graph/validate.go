package graph

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/node/editor"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// Validate checks a job as ComfyUI checks a prompt: classes first, then every output node with all its ancestors. It
// needs no device. Literals are coerced in place (the text "12" of an INT becomes 12). outputs are the output nodes
// that can run, in the order of the workflow.
//
// If no output can run, the failure is fatal and outputs is nil. If some can, a failure describes the others (ComfyUI
// then answers 200 with node_errors): check len(outputs).
func Validate(cat *Catalogue, roots files.Roots, job Job) (outputs []string, failure *fault.Error) {
	if job.Workflow == nil {
		return nil, &fault.Error{Code: fault.NoPrompt, Text: "No prompt provided", Details: "No prompt provided"}
	}
	v := &validation{
		cat: cat, roots: &roots, job: &job, w: job.Workflow, done: map[string]*verdict{},
		lists: map[string][]any{},
	}
	starts, failure := v.starts()
	if failure != nil {
		return nil, failure
	}
	var details []string
	bad := []string{}
	for _, id := range starts {
		verdict := v.outer(id)
		if verdict.ok {
			outputs = append(outputs, id)
			continue
		}
		bad = append(bad, id)
		for _, e := range verdict.errors {
			details = append(details, fmt.Sprintf("%s: %s", e.message, e.details))
		}
	}
	if len(bad) == 0 {
		return outputs, nil
	}
	failure = &fault.Error{
		Code: fault.OutputsFailed, Text: messageOutputsFailed,
		Details: strings.Join(details, "\n"), NodeErrors: v.report(bad),
	}
	v.blame(failure)
	return outputs, failure
}

// ComfyUI's messages for the errors in NodeErrors.
const (
	messageOutputsFailed    = "Prompt outputs failed validation"
	messageInnerValidation  = "Exception when validating inner node"
	messageOuterValidation  = "Exception when validating node"
	messageInputMissing     = "Required input is missing"
	messageBadLink          = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
	messageTypeMismatch     = "Return type mismatch between linked nodes"
	messageNotInList        = "Value not in list"
	messageCustomValidation = "Custom validation failed for node"
)

// validation is one walk over a workflow.
type validation struct {
	cat   *Catalogue
	roots *files.Roots
	job   *Job
	w     *Workflow
	done  map[string]*verdict
	lists map[string][]any // file lists, read once per walk
	path  []string         // nodes being validated, outermost first
}

// verdict is what is known about one node.
type verdict struct {
	ok     bool
	errors []problem
	deps   []string // ids of the sources that its links name
}

// problem is one entry of a node's errors.
type problem struct {
	kind, message, details string
	extra                  *pyjson.Object
}

// starts returns the output nodes to run, after checking that every node of the workflow has a known class.
func (v *validation) starts() ([]string, *fault.Error) {
	for _, id := range v.w.root.Keys() {
		if failure := v.shape(id); failure != nil {
			return nil, failure
		}
	}
	var out []string
	for _, id := range v.w.root.Keys() {
		k, failure := v.class(id)
		if failure != nil {
			return nil, failure
		}
		if k.Output && (v.job.Targets == nil || slices.Contains(v.job.Targets, id)) {
			out = append(out, id)
		}
	}
	if len(out) == 0 {
		return nil, &fault.Error{Code: fault.NoOutputs, Text: "Prompt has no outputs"}
	}
	return out, nil
}

// shape refuses what is not a node at all. ComfyUI answers such graphs with an HTTP 500 page.
func (v *validation) shape(id string) *fault.Error {
	node, isObject := v.w.root.At(id).(*pyjson.Object)
	if !isObject {
		return fault.New(fault.InvalidPrompt, "node %s is %s, want an object {\"class_type\": ..., \"inputs\": {...}}",
			id, pyjson.Kind(v.w.root.At(id)))
	}
	class, typed := node.Get("class_type")
	switch class.(type) {
	case []any, *pyjson.Object:
		f := fault.At(fault.InvalidPrompt, "class_type", "class_type of node %s is %s, want a string", id,
			pyjson.Kind(class))
		f.Node = id
		return f
	}
	if typed && node.Has("inputs") && node.In("inputs") == nil {
		f := fault.At(fault.InvalidPrompt, "inputs", "inputs of node %s are %s, want an object", id,
			pyjson.Kind(node.At("inputs")))
		f.Node, f.Class = id, v.w.Class(id)
		return f
	}
	return nil
}

// class returns the class of a node; the failure names the node by the title that the editor gave it.
func (v *validation) class(id string) (*Class, *fault.Error) {
	node := v.w.root.In(id)
	if k := v.cat.classes[node.Text("class_type")]; k != nil {
		return k, nil
	}
	class, typed := node.Get("class_type")
	title, named := node.In("_meta").Get("title")
	if typed && !named {
		title = class
	}
	text := editor.NotFound(node.Text("class_type"), pyjson.Str(title))
	if !typed {
		shown := title
		if !pyjson.Bool(title) {
			shown = "ID #" + id
		}
		text = fmt.Sprintf("Node '%s' has no class_type. The workflow may be corrupted or a custom node is missing.",
			pyjson.Excerpt(pyjson.Str(shown)))
	}
	return nil, &fault.Error{
		Code: fault.MissingNodeType, Text: text,
		Details: fmt.Sprintf("Node ID '#%s'", id), Node: id, Class: pyjson.Excerpt(node.Text("class_type")),
		Extra: map[string]any{"node_id": id, "class_type": brief(class), "node_title": brief(title)},
	}
}

// brief shortens long text.
func brief(v any) any {
	if s, ok := v.(string); ok {
		return pyjson.Excerpt(s)
	}
	return v
}

// exception is a fault that ComfyUI reports as a Python exception raised inside the validation of a node.
type exception struct {
	kind, text string
}

// outer validates an output node.
func (v *validation) outer(id string) *verdict {
	r, ex := v.node(id)
	if ex != nil {
		r = &verdict{errors: []problem{{
			fault.Validation, messageOuterValidation, ex.text,
			pyjson.NewObject("exception_type", ex.kind, "traceback", []any{}),
		}}}
		v.done[id] = r
	}
	return r
}

// node validates a node and its ancestors, once.
func (v *validation) node(id string) (*verdict, *exception) {
	if r := v.done[id]; r != nil {
		return r, nil
	}
	for i, p := range v.path {
		if p == id {
			return v.cycle(v.path[i:]), nil
		}
	}
	v.path = append(v.path, id)
	defer func() { v.path = v.path[:len(v.path)-1] }()

	inputs := v.w.inputs(id)
	if inputs == nil {
		return nil, &exception{"KeyError", "'inputs'"}
	}
	k := v.cat.classes[v.w.Class(id)]
	r := &verdict{ok: true}
	declared := k.declared(inputs.Get)
	for i := range declared {
		if ex := v.input(k, &declared[i], inputs, r); ex != nil {
			return nil, ex
		}
	}
	if k.Check != nil {
		for _, name := range k.SelfChecked {
			if ex := ownArgument(k, name, inputs); ex != nil {
				return nil, ex
			}
		}
	}
	if sound := r.ok && len(r.errors) == 0; k.Check != nil && (sound || len(k.SelfChecked) > 0) {
		if name, text := k.Check(v.job, v.roots, inputs); text != "" {
			r.errors = append(r.errors, problem{
				fault.Custom, messageCustomValidation, name + " - " + text,
				pyjson.NewObject("input_name", name),
			})
		}
	}
	if c := v.done[id]; c != nil { // a cycle through this node was found on the way
		r.errors = append(c.errors, r.errors...)
	}
	r.ok = r.ok && len(r.errors) == 0
	v.done[id] = r
	return r, nil
}

// ownArgument returns the exception that VALIDATE_INPUTS of a ComfyUI class raises for an argument that is missing or
// no text.
func ownArgument(k *Class, name string, inputs *pyjson.Object) *exception {
	val, given := inputs.Get(name)
	if !given { // LoadImageMask inherits the function of LoadImage
		return &exception{"TypeError", fmt.Sprintf("%s.VALIDATE_INPUTS() missing 1 required positional argument: '%s'",
			strings.TrimSuffix(k.Name, "Mask"), name)}
	}
	if IsLink(val) { // its value is not known yet
		val = nil
	}
	if _, isText := val.(string); isText {
		return nil
	}
	return &exception{"AttributeError", fmt.Sprintf("'%s' object has no attribute 'endswith'", pyjson.TypeName(val))}
}

// cycle gives each node of a dependency cycle its error and returns the verdict on the first.
func (v *validation) cycle(nodes []string) *verdict {
	var names []string
	for _, n := range append(slices.Clone(nodes), nodes[0]) {
		names = append(names, fmt.Sprintf("%s (%s)", n, v.w.Class(n)))
	}
	ids := make([]any, len(nodes))
	for i := range nodes {
		ids[i] = nodes[i]
	}
	for _, id := range nodes {
		v.done[id] = &verdict{errors: []problem{{
			fault.Cycle, "Dependency cycle detected", strings.Join(names, " -> "),
			pyjson.NewObject("node_id", id, "cycle_nodes", ids),
		}}}
	}
	return v.done[nodes[0]]
}

// input validates one declared input of a node.
func (v *validation) input(k *Class, in *Input, inputs *pyjson.Object, r *verdict) *exception {
	val, given := inputs.Get(in.Name)
	if !given {
		if in.Later {
			inputs.Set(in.Name, in.preset())
			return nil
		}
		if !in.Optional {
			r.errors = append(r.errors, problem{
				fault.InputMissing, messageInputMissing, in.Name[strings.LastIndexByte(in.Name, '.')+1:],
				pyjson.NewObject("input_name", in.Name),
			})
		}
		return nil
	}
	if l, ok := val.([]any); ok {
		return v.link(k, in, l, r)
	}
	if inner, ok := inputs.In(in.Name).Get("__value__"); ok {
		val = inner
		inputs.Set(in.Name, val)
	}
	if name, isText := val.(string); isText {
		val = in.Named(v.roots, name)
		inputs.Set(in.Name, val)
	}
	val, p := v.literal(k, in, val)
	if p != nil {
		r.errors = append(r.errors, *p)
		return nil
	}
	inputs.Set(in.Name, val)
	return nil
}

// link validates an input that names another node.
func (v *validation) link(k *Class, in *Input, l []any, r *verdict) *exception {
	if len(l) != 2 {
		r.errors = append(r.errors, *v.wrong(k, in, l, fault.BadLink, messageBadLink, in.Name))
		return nil
	}
	switch l[0].(type) {
	case []any, *pyjson.Object:
		return &exception{"TypeError", fmt.Sprintf("unhashable type: '%s'", pyjson.TypeName(l[0]))}
	}
	id, isText := l[0].(string)
	if !isText || !v.w.root.Has(id) {
		return &exception{"KeyError", pyjson.Excerpt(pyjson.Repr(l[0]))}
	}
	received, ex := outputType(v.cat.classes[v.w.Class(id)], l[1])
	if ex != nil {
		return ex
	}
	if !typesFit(received, in.Type) {
		shown := in.Type
		if in.Type == "COMBO" && !k.NewStyle() {
			shown = pyjson.Repr(v.choices(in))
		}
		r.errors = append(r.errors, problem{
			fault.TypeMismatch, messageTypeMismatch,
			fmt.Sprintf("%s, received_type(%s) mismatch input_type(%s)", in.Name, received, shown),
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_type", received,
				"linked_node", l),
		})
		return nil
	}
	r.deps = append(r.deps, id)
	inner, ex := v.node(id)
	if ex != nil {
		v.done[id] = &verdict{errors: []problem{{
			fault.InnerValidation, messageInnerValidation, ex.text,
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in),
				"exception_message", ex.text, "exception_type", ex.kind, "traceback", []any{}, "linked_node", l),
		}}}
		r.ok = false
		return nil
	}
	r.ok = r.ok && inner.ok
	return nil
}

// outputType returns the type of an output, indexed as Python indexes a tuple: -1 is the last.
func outputType(k *Class, slot any) (string, *exception) {
	container := "tuple"
	if k.NewStyle() {
		container = "list"
	}
	if b, ok := slot.(bool); ok {
		slot = int64(0)
		if b {
			slot = int64(1)
		}
	}
	n, ok := slot.(int64)
	if !ok {
		if kind := pyjson.TypeName(slot); kind != "int" {
			return "", &exception{"TypeError", fmt.Sprintf("%s indices must be integers or slices, not %s", container, kind)}
		}
		return "", &exception{"IndexError", "cannot fit 'int' into an index-sized integer"}
	}
	if n < 0 {
		n += int64(len(k.Outputs))
	}
	if n < 0 || n >= int64(len(k.Outputs)) {
		return "", &exception{"IndexError", container + " index out of range"}
	}
	return k.Outputs[n].Type, nil
}

// typesFit reports whether an output type fits an input type: equal, a wildcard, or comma lists with a common member.
func typesFit(received, want string) bool {
	if received == want || received == "*" || want == "*" || received == typeMatch || want == typeMatch {
		return true
	}
	for _, a := range strings.Split(received, ",") {
		for _, b := range strings.Split(want, ",") {
			if strings.TrimSpace(a) == strings.TrimSpace(b) {
				return true
			}
		}
	}
	return false
}
