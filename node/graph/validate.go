package graph

import (
	"fmt"
	"math"
	"math/big"
	"sort"
	"strings"

	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// Validate checks a job as ComfyUI checks a prompt: classes first, then every output node with all its ancestors. It
// needs no device. Literals are coerced in place (the text "12" of an INT becomes 12). outputs are the output nodes
// that can run, in the order of the workflow.
//
// With no good output the failure is fatal and outputs is nil. With some good outputs the failure, if not nil, tells of
// the bad ones (ComfyUI answers 200 and node_errors then): check len(outputs).
func Validate(cat *Catalogue, roots files.Roots, job Job) (outputs []string, failure *fault.Failure) {
	if job.Workflow == nil {
		return nil, &fault.Failure{Code: fault.CodeNoPrompt, Message: "No prompt provided", Details: "No prompt provided"}
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
	failure = &fault.Failure{
		Code: fault.CodeOutputsFailed, Message: messageOutputsFailed,
		Details: strings.Join(details, "\n"), NodeErrors: v.report(bad),
	}
	v.blame(failure)
	return outputs, failure
}

// Codes in the errors of Failure.NodeErrors, with ComfyUI's texts.
const (
	codeInputMissing    = "required_input_missing"
	codeBadLink         = "bad_linked_input"
	codeTypeMismatch    = "return_type_mismatch"
	codeInvalidInput    = "invalid_input_type"
	codeTooSmall        = "value_smaller_than_min"
	codeTooBig          = "value_bigger_than_max"
	codeNotInList       = "value_not_in_list"
	codeCustom          = "custom_validation_failed"
	codeValidation      = "exception_during_validation"
	codeInnerValidation = "exception_during_inner_validation"
	codeCycle           = "dependency_cycle"
	// ours: a literal where a link belongs (ComfyUI fails only when the node runs)
	codeExpectedLink        = "link_expected"
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
	path  []string         // nodes being looked at, outermost first
}

// verdict is what is known of one node.
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
func (v *validation) starts() ([]string, *fault.Failure) {
	wanted := map[string]bool{}
	for _, t := range v.job.Targets {
		wanted[t] = true
	}
	var out []string
	for _, id := range v.w.root.Keys() {
		node, _ := v.w.root.At(id).(*pyjson.Object)
		var class any
		if node != nil {
			class, _ = node.Get("class_type")
		}
		name, ok := class.(string)
		if !ok {
			return nil, &fault.Failure{
				Code:    fault.CodeInvalidPrompt,
				Message: "Cannot execute because a node is missing the class_type property.",
				Details: fmt.Sprintf("Node ID '#%s'", id), Node: id,
			}
		}
		k := v.cat.classes[name]
		if k == nil {
			return nil, &fault.Failure{
				Code:    fault.CodeInvalidPrompt,
				Message: fmt.Sprintf("Cannot execute because node %s does not exist.", pyjson.Excerpt(name)),
				Details: fmt.Sprintf("Node ID '#%s'", id), Node: id, Class: pyjson.Excerpt(name),
			}
		}
		if k.Output && (len(wanted) == 0 || wanted[id]) {
			out = append(out, id)
		}
	}
	if len(out) == 0 {
		return nil, &fault.Failure{Code: fault.CodeNoOutputs, Message: "Prompt has no outputs"}
	}
	return out, nil
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
			codeValidation, messageOuterValidation, ex.text,
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

	node, _ := v.w.node(id)
	raw, has := node.Get("inputs")
	if !has {
		return nil, &exception{"KeyError", "'inputs'"}
	}
	inputs, isObject := raw.(*pyjson.Object)
	if !isObject {
		return nil, &exception{"TypeError", badInputs(raw)}
	}
	k := v.cat.classes[v.w.Class(id)]
	r := &verdict{ok: true}
	for i := range k.Inputs {
		if ex := v.input(k, &k.Inputs[i], inputs, r); ex != nil {
			return nil, ex
		}
	}
	if r.ok && len(r.errors) == 0 && k.Check != nil {
		if name, text := k.Check(v.job, v.roots, inputs); text != "" {
			r.errors = append(r.errors, problem{
				codeCustom, messageCustomValidation, name + " - " + text,
				pyjson.NewObject("input_name", name),
			})
		}
	}
	if c := v.done[id]; c != nil { // a cycle that comes back to this node was found on the way
		r.errors = append(r.errors, c.errors...)
	}
	r.ok = r.ok && len(r.errors) == 0
	v.done[id] = r
	return r, nil
}

// cycle reports nodes that wait for each other.
func (v *validation) cycle(nodes []string) *verdict {
	var names []string
	for _, n := range append(append([]string(nil), nodes...), nodes[0]) {
		names = append(names, fmt.Sprintf("%s (%s)", n, v.w.Class(n)))
	}
	ids := make([]any, len(nodes))
	for i := range nodes {
		ids[i] = nodes[i]
	}
	r := &verdict{errors: []problem{{
		codeCycle, "Dependency cycle detected", strings.Join(names, " -> "),
		pyjson.NewObject("node_id", nodes[0], "cycle_nodes", ids),
	}}}
	v.done[nodes[0]] = r
	return r
}

// badInputs is Python's complaint about inputs that are not a dict.
func badInputs(raw any) string {
	switch raw.(type) {
	case string:
		return "string indices must be integers, not 'str'"
	case []any:
		return "list indices must be integers or slices, not str"
	}
	return fmt.Sprintf("argument of type '%s' is not iterable", pyjson.TypeName(raw))
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
				codeInputMissing, messageInputMissing, in.Name,
				pyjson.NewObject("input_name", in.Name),
			})
		}
		return nil
	}
	if l, ok := val.([]any); ok {
		return v.link(k, in, l, r)
	}
	if o, ok := val.(*pyjson.Object); ok {
		if inner, ok := o.Get("__value__"); ok {
			val = inner
			inputs.Set(in.Name, val)
		}
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
		r.errors = append(r.errors, problem{
			codeBadLink, messageBadLink, in.Name,
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_value", l),
		})
		return nil
	}
	id, isText := l[0].(string)
	source, found := v.w.node(id)
	if !isText || !found || source == nil {
		return &exception{"KeyError", pyjson.Excerpt(pyjson.Repr(l[0]))}
	}
	received, ex := outputType(v.cat.classes[v.w.Class(id)], l[1])
	if ex != nil {
		return ex
	}
	if !typesFit(received, in.Type) {
		shown := in.Type
		if in.Type == "COMBO" && !k.NewStyle {
			shown = pyjson.Repr(v.choices(in))
		}
		r.errors = append(r.errors, problem{
			codeTypeMismatch, messageTypeMismatch,
			fmt.Sprintf("%s, received_type(%s) mismatch input_type(%s)", in.Name, received, shown),
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_type",
				received, "linked_node", l),
		})
		return nil
	}
	r.deps = append(r.deps, id)
	inner, ex := v.node(id)
	if ex != nil {
		v.done[id] = &verdict{errors: []problem{{
			codeInnerValidation, messageInnerValidation, ex.text,
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in),
				"exception_message", ex.text, "exception_type", ex.kind, "traceback", []any{}, "linked_node", l),
		}}}
		r.ok = false
		return nil
	}
	r.ok = r.ok && inner.ok
	return nil
}

// outputType indexes the outputs of a class as Python indexes a tuple: -1 is the last.
func outputType(k *Class, slot any) (string, *exception) {
	container := "tuple"
	if k.NewStyle {
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
		n = math.MaxInt32
	}
	if n < 0 {
		n += int64(len(k.Outputs))
	}
	if n < 0 || n >= int64(len(k.Outputs)) {
		return "", &exception{"IndexError", container + " index out of range"}
	}
	return k.Outputs[n].Type, nil
}

// typesFit compares an output type with an input type: equal, wildcard, or a member in common of comma lists.
func typesFit(received, want string) bool {
	if received == want || received == "*" || want == "*" {
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

// literal coerces and checks a value; the problem is nil if it may be used.
func (v *validation) literal(k *Class, in *Input, val any) (any, *problem) {
	given := val
	var err error
	switch in.Type {
	case "INT":
		val, err = pyjson.Int(val)
	case "FLOAT":
		val, err = pyjson.Float(val)
	case "STRING":
		val = pyjson.Str(val)
	case "BOOLEAN":
		val = pyjson.Bool(val)
	case "COMBO":
	default:
		return nil, &problem{
			codeExpectedLink, fmt.Sprintf("Input %s takes a link [node id, slot] to a node that gives %s", in.Name, in.Type),
			fmt.Sprintf("%s, got %s", in.Name, pyjson.Excerpt(pyjson.Repr(val))),
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_value", val),
		}
	}
	if err != nil {
		return nil, &problem{
			codeInvalidInput, "Failed to convert an input value to a " + in.Type + " value",
			fmt.Sprintf("%s, %s, %s", in.Name, pyjson.Excerpt(pyjson.Str(given)), pyjson.Excerpt(err.Error())),
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_value", given,
				"exception_message", pyjson.Excerpt(err.Error())),
		}
	}
	for _, own := range k.Own {
		if own == in.Name {
			return val, nil
		}
	}
	if p := v.limits(k, in, val); p != nil {
		return nil, p
	}
	if in.Type != "COMBO" {
		return val, nil
	}
	choices := v.choices(in)
	for _, c := range choices {
		if c == val {
			return val, nil
		}
	}
	config := v.config(k, in)
	allowed := pyjson.Repr(choices)
	if len(choices) > 20 {
		config, allowed = nil, fmt.Sprintf("(list of length %d)", len(choices))
	}
	return nil, &problem{
		codeNotInList, messageNotInList,
		fmt.Sprintf("%s: '%s' not in %s", in.Name, pyjson.Excerpt(pyjson.Str(val)), allowed),
		pyjson.NewObject("input_name", in.Name, "input_config", config, "received_value", val),
	}
}

// limits checks min and max, and that a float is a number at all.
func (v *validation) limits(k *Class, in *Input, val any) *problem {
	if in.Options == nil {
		return nil
	}
	extra := func() *pyjson.Object {
		return pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_value", val)
	}
	if f, ok := val.(float64); ok && math.IsNaN(f) {
		return &problem{
			codeInvalidInput, "Failed to convert an input value to a FLOAT value",
			in.Name + ", nan, not a number", extra(),
		}
	}
	if lo, ok := in.Options.Get("min"); ok && compare(val, lo) < 0 {
		return &problem{codeTooSmall, fmt.Sprintf("Value %s smaller than min of %s", pyjson.Excerpt(pyjson.Str(val)),
			pyjson.Str(lo)), in.Name, extra()}
	}
	if hi, ok := in.Options.Get("max"); ok && compare(val, hi) > 0 {
		return &problem{codeTooBig, fmt.Sprintf("Value %s bigger than max of %s", pyjson.Excerpt(pyjson.Str(val)),
			pyjson.Str(hi)), in.Name, extra()}
	}
	return nil
}

// compare orders two numbers of any type exactly; text is never out of limits.
func compare(a, b any) int {
	x, okx := toBig(a)
	y, oky := toBig(b)
	if !okx || !oky {
		return 0
	}
	return x.Cmp(y)
}

func toBig(v any) (*big.Float, bool) {
	f := new(big.Float).SetPrec(16384)
	switch n := v.(type) {
	case int64:
		return f.SetInt64(n), true
	case uint64:
		return f.SetUint64(n), true
	case *big.Int:
		return f.SetInt(n), true
	case float64:
		return f.SetFloat64(n), true
	}
	return nil, false
}

func (v *validation) choices(in *Input) []any {
	if in.Files == "" {
		return in.choices(v.roots)
	}
	if l, ok := v.lists[in.Files]; ok {
		return l
	}
	l := in.choices(v.roots)
	v.lists[in.Files] = l
	return l
}

// config is the [type, options] pair as ComfyUI puts it into error bodies: always two items; combos of new-style
// classes show their options.
func (v *validation) config(k *Class, in *Input) any {
	c := in.config(k, v.roots)
	if len(c) == 1 {
		c = append(c, pyjson.NewObject())
	}
	return c
}

// report builds node_errors: every node that has errors of its own and lies above (or is) a bad output.
func (v *validation) report(bad []string) map[string]any {
	dependents := map[string][]any{}
	for _, out := range bad {
		seen := map[string]bool{}
		var walk func(id string)
		walk = func(id string) {
			r := v.done[id]
			if r == nil || seen[id] {
				return
			}
			seen[id] = true
			if len(r.errors) > 0 {
				dependents[id] = append(dependents[id], out)
			}
			for _, d := range r.deps {
				walk(d)
			}
		}
		walk(out)
	}
	report := map[string]any{}
	for id, outs := range dependents {
		list := []any{}
		for _, e := range v.done[id].errors {
			list = append(list, pyjson.NewObject("type", e.kind, "message", e.message, "details", e.details,
				"extra_info", e.extra))
		}
		report[id] = pyjson.NewObject("errors", list, "dependent_outputs", outs, "class_type", v.w.Class(id))
	}
	return report
}

// blame points the failure at the first node with errors, for readers that show one line.
func (v *validation) blame(f *fault.Failure) {
	ids := make([]string, 0, len(f.NodeErrors))
	for id := range f.NodeErrors {
		ids = append(ids, id)
	}
	pyjson.SortKeys(ids)
	if len(ids) == 0 {
		return
	}
	f.Node, f.Class = ids[0], v.w.Class(ids[0])
	errs := v.done[ids[0]].errors
	sort.SliceStable(errs, func(i, j int) bool { return errs[i].details < errs[j].details })
	if name, ok := errs[0].extra.Get("input_name"); ok {
		f.Field, _ = name.(string)
	}
}
