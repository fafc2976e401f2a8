// Package template reads workflows with named parameters, checks the values that clients give for them, and fills them
// in.
//
// Reading order: template (the file), parameter (what a value must be), folder.
package template

import (
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// Key is the key of a template's file beside the nodes.
const Key = "patchbay"

// Describe returns the object_info entry of a class (*pyjson.Object) under its name; an unknown class has none.
type Describe func(class string) map[string]any

// Template is a workflow with named parameters.
type Template struct {
	Name, About string
	Parameters  []Parameter // in the order of the file
	graph       *graph.Workflow
}

// Parse reads the file of a template: a workflow in API format with one more key,
//
//	"patchbay": {"about": "...", "parameters": {"prompt": "6.text", "width": ["5.width", "12.width"]}}
//
// where "6.text" is the input text of node 6. The value in the workflow is the parameter's default; type, limits and
// allowed values are those of object_info.
func Parse(name string, data []byte, describe Describe) (*Template, error) {
	bad := func(format string, args ...any) error {
		e := fault.New(fault.BadWorkflow, format, args...)
		e.Text = "template " + name + ": " + e.Text
		return e
	}
	v, err := pyjson.Decode(data)
	if err != nil {
		return nil, bad("it is not JSON: %v", err)
	}
	file, ok := v.(*pyjson.Object)
	if !ok {
		return nil, bad("want an object of nodes, got %s", pyjson.Kind(v))
	}
	nodes := pyjson.NewObject()
	for _, k := range file.Keys() {
		if k != Key {
			nodes.Set(k, file.At(k))
		}
	}
	t := &Template{Name: name}
	w, failure := graph.ParseWorkflow(nodes)
	if failure != nil {
		return nil, bad("%s", failure.Text)
	}
	t.graph = w
	about, ok := file.At(Key).(*pyjson.Object)
	if !ok {
		return nil, bad("it has no object %q with its parameters", Key)
	}
	for _, k := range about.Keys() {
		if k != "about" && k != "parameters" {
			return nil, bad("%s.%s is not known: there are about and parameters", Key, k)
		}
	}
	t.About = about.Text("about")
	list, ok := about.At("parameters").(*pyjson.Object)
	if !ok {
		return nil, bad("%s.parameters: want an object {name: \"node.input\"}", Key)
	}
	for _, k := range list.Keys() {
		p, err := t.parameter(k, list.At(k), describe)
		if err != nil {
			return nil, bad("parameter %s: %v", k, err)
		}
		t.Parameters = append(t.Parameters, p)
	}
	return t, nil
}

// Find returns a parameter; nil: there is none of that name.
func (t *Template) Find(name string) *Parameter {
	for i := range t.Parameters {
		if t.Parameters[i].Name == name {
			return &t.Parameters[i]
		}
	}
	return nil
}

// Names lists the parameters.
func (t *Template) Names() []string {
	var out []string
	for i := range t.Parameters {
		out = append(out, t.Parameters[i].Name)
	}
	return out
}

// Schema describes the parameters as a JSON Schema.
func (t *Template) Schema() *pyjson.Object {
	properties, required := pyjson.NewObject(), []any{}
	for i := range t.Parameters {
		p := &t.Parameters[i]
		properties.Set(p.Name, p.Schema())
		if p.Required {
			required = append(required, p.Name)
		}
	}
	return pyjson.NewObject("type", "object", "properties", properties, "required", required, "additionalProperties",
		false)
}

// Filled returns the workflow with values for its parameters, and the files that go with it. A value is as JSON has it,
// text as forms have it, or the bytes of a file.
func (t *Template) Filled(values *pyjson.Object) (*graph.Workflow, map[string][]byte, error) {
	w, files := t.graph.Clone(), map[string][]byte{}
	for _, name := range values.Keys() {
		if t.Find(name) == nil {
			return nil, nil, allowed(fault.At(fault.BadRequest, name, "template %s has no parameter %s; it has %s", t.Name,
				name, fault.List(t.Names())), t.Names())
		}
	}
	for i := range t.Parameters {
		p := &t.Parameters[i]
		given, ok := values.Get(p.Name)
		if !ok {
			if p.Required {
				return nil, nil, fault.At(fault.InputMissing, p.Name, "parameter %s of template %s is missing", p.Name, t.Name)
			}
			continue
		}
		v, data, err := p.value(given)
		if err != nil {
			return nil, nil, err
		}
		if data != nil {
			name := "patchbay-" + p.Name + extension(data)
			files[name], v = data, name
		}
		for _, at := range p.targets {
			if err := w.SetInput(at.node, at.input, v); err != nil {
				return nil, nil, err
			}
		}
	}
	return w, files, nil
}

// Sample returns values with which the workflow can be checked: a file for every parameter that is one.
func (t *Template) Sample() *pyjson.Object {
	out := pyjson.NewObject()
	for i := range t.Parameters {
		switch p := &t.Parameters[i]; {
		case p.file:
			out.Set(p.Name, []byte{0})
		case p.Required:
			out.Set(p.Name, p.example())
		}
	}
	return out
}

// allowed adds the values that a client may give to an error.
func allowed[T any](e *fault.Error, values []T) *fault.Error {
	e.Extra = map[string]any{"allowed": values}
	return e
}

// target is an input of a node.
type target struct{ node, input string }

// targets reads where a parameter goes: "node.input", or a list of them.
func targets(v any) (out []target, ok bool) {
	list, isList := v.([]any)
	if !isList {
		list = []any{v}
	}
	for _, item := range list {
		text, _ := item.(string)
		dot := strings.LastIndexByte(text, '.')
		if dot < 1 || dot == len(text)-1 {
			return nil, false
		}
		out = append(out, target{text[:dot], text[dot+1:]})
	}
	return slices.Compact(out), len(out) > 0
}
