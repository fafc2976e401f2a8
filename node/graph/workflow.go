package graph

import (
	"cmp"
	"fmt"
	"strings"

	"patchbay/fault"
	"patchbay/node/pyjson"
)

// Limits of a workflow, far above what people send and far below what hurts.
const (
	maxWorkflowNodes = 10000
	maxNodeID        = 256 // bytes
)

// Workflow is a graph in ComfyUI's API format: node id -> {class_type, inputs, _meta}. It keeps the order of its keys
// where the source had one. Validate coerces literals in place, as ComfyUI does; otherwise a Workflow is not changed
// after parsing. Not safe for concurrent use.
type Workflow struct {
	root *pyjson.Object
}

// ParseWorkflow takes a decoded graph: *Object, map[string]any or map[any]any with nil, bool, string, json.Number, any
// integer or float type, []any and nested maps. Plain maps have no order, so their keys are sorted (numbers by value).
// The graph is copied. The failure is invalid_prompt, workflow_format_ui or workflow_too_large.
func ParseWorkflow(v any) (*Workflow, *fault.Error) {
	n, err := pyjson.Normalize(v)
	if err != nil {
		return nil, &fault.Error{
			Code: fault.WorkflowTooLarge, Text: "workflow cannot be read",
			Details: err.Error(), Cause: err,
		}
	}
	root, ok := n.(*pyjson.Object)
	switch {
	case !ok:
		return nil, fault.New(fault.InvalidPrompt,
			"a workflow is an object {node id: {\"class_type\": ..., \"inputs\": {...}}}, got %s", pyjson.Kind(n))
	case root.Has("nodes") && root.Has("links"):
		return nil, fault.New(fault.WorkflowFormatUI,
			"this looks like a workflow in the editor's format, and nodes or links are no lists; export it in API format "+
				"(Workflow > Export (API))")
	case root.Len() > maxWorkflowNodes:
		return nil, fault.New(fault.WorkflowTooLarge, "workflow has %d nodes, the limit is %d", root.Len(), maxWorkflowNodes)
	}
	for _, id := range root.Keys() {
		if len(id) > maxNodeID {
			return nil, fault.New(fault.WorkflowTooLarge, "node id %s has %d bytes, the limit is %d", pyjson.Excerpt(id),
				len(id), maxNodeID)
		}
	}
	return &Workflow{root: root}, nil
}

// ParseWorkflowJSON parses the JSON text of a graph and keeps the order of its keys. Python's NaN and Infinity are read
// too (and refused where they are used).
func ParseWorkflowJSON(data []byte) (*Workflow, *fault.Error) {
	v, err := pyjson.Decode(data)
	if err != nil {
		return nil, &fault.Error{
			Code: fault.InvalidPrompt, Text: "workflow is not JSON",
			Details: err.Error(), Cause: err,
		}
	}
	return ParseWorkflow(v)
}

// IDs returns the node ids in the order of the source.
func (w *Workflow) IDs() []string { return append([]string(nil), w.root.Keys()...) }

// Len returns the number of nodes.
func (w *Workflow) Len() int { return w.root.Len() }

// Class returns the class_type of a node, "" if there is none.
func (w *Workflow) Class(id string) string { return w.root.In(id).Text("class_type") }

// Title returns the title that the editor stored for a node, or its class.
func (w *Workflow) Title(id string) string {
	return cmp.Or(w.root.In(id).In("_meta").Text("title"), w.Class(id))
}

// Input returns a literal or link of a node: nil, bool, int64, uint64, *big.Int, float64, string, []any or *Object.
func (w *Workflow) Input(id, name string) (any, bool) { return w.inputs(id).Get(name) }

// Unknown returns the classes of the workflow that are not in a catalogue, with the ids of their nodes
// ([]string), in the order of the workflow.
func (w *Workflow) Unknown(cat *Catalogue) *pyjson.Object {
	out := pyjson.NewObject()
	for _, id := range w.root.Keys() {
		if class := w.Class(id); cat.Class(class) == nil {
			ids, _ := out.At(class).([]string)
			out.Set(class, append(ids, id))
		}
	}
	return out
}

// Source returns the node that an input is linked to; false if it is not linked, or the node does not exist.
func (w *Workflow) Source(id, name string) (string, bool) {
	l, ok := asLink(w.inputs(id).At(name))
	return l.id, ok && w.Class(l.id) != ""
}

// SetInput replaces one input of a node (run --set id.field=value). The value may be anything that ParseWorkflow
// takes. It returns an error if the node does not exist or has no inputs object.
func (w *Workflow) SetInput(id, name string, value any) error {
	in := w.inputs(id)
	if in == nil {
		return fmt.Errorf("set %s.%s: the workflow has no node %q; its nodes are %s", id, name, id,
			strings.Join(w.IDs(), ", "))
	}
	v, err := pyjson.Normalize(value)
	if err != nil {
		return fmt.Errorf("set %s.%s: %w", id, name, err)
	}
	in.Set(name, v)
	return nil
}

// Targets parses partial_execution_targets of a POST /prompt body: nil (all outputs) if it is null or absent, else the
// ids in it. ComfyUI evaluates Python's "id in targets", so a string contains every id that is a substring of it.
func (w *Workflow) Targets(v any) ([]string, *fault.Error) {
	ids := []string{}
	switch x := v.(type) {
	case nil:
		return nil, nil
	case []any:
		for _, item := range x {
			if id, ok := item.(string); ok {
				ids = append(ids, id)
			}
		}
	case *pyjson.Object:
		ids = append(ids, x.Keys()...)
	case string:
		for _, id := range w.root.Keys() {
			if strings.Contains(x, id) {
				ids = append(ids, id)
			}
		}
	default:
		return nil, fault.At(fault.InvalidPrompt, "partial_execution_targets",
			"partial_execution_targets is %s, want a list of node ids", pyjson.Kind(v))
	}
	return ids, nil
}

// JSON returns the graph as ComfyUI would store it: Python's json.dumps with default separators, non-ASCII escaped.
func (w *Workflow) JSON() []byte { return pyjson.Dump(w.root) }

// Value returns the graph as plain maps and slices, for encoders that know nothing of Object.
func (w *Workflow) Value() map[string]any {
	m, _ := pyjson.Plain(w.root).(map[string]any)
	return m
}

// Clone returns a deep copy.
func (w *Workflow) Clone() *Workflow {
	o, _ := pyjson.Clone(w.root).(*pyjson.Object)
	return &Workflow{root: o}
}

func (w *Workflow) inputs(id string) *pyjson.Object { return w.root.In(id).In("inputs") }

// link is a reference to an output of another node.
type link struct {
	id   string
	slot int
}

// IsLink reports whether a value is a link.
func IsLink(v any) bool {
	_, ok := asLink(v)
	return ok
}

// asLink returns a value as a link if ComfyUI's executor takes it for one: [string, integer]. Validate has refused
// every other list.
func asLink(v any) (link, bool) {
	l, _ := v.([]any)
	if len(l) != 2 {
		return link{}, false
	}
	id, ok := l[0].(string)
	switch n := l[1].(type) {
	case int64:
		return link{id, int(n)}, ok
	case bool:
		if n {
			return link{id, 1}, ok
		}
		return link{id, 0}, ok
	}
	return link{}, false
}
