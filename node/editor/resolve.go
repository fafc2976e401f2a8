package editor

import (
	"slices"
	"strings"

	"patchbay/node/pyjson"
)

// frame is one use of a canvas: the whole graph, or an instance of a subgraph.
type frame struct {
	*canvas
	path     string // ids of the enclosing instances, each followed by ":"
	parent   *frame
	instance *node // in the parent
	children map[string]*frame
	// host holds values that the instance gives to widgets inside it, by node id and widget name.
	host map[[2]string]any
	// given holds values that the instance gives to its own inputs, by name.
	given map[string]any
}

// origin is where an input gets its value: an output of a node in the result, or a value.
type origin struct {
	id    string // "" for a value
	slot  int
	value any
	typed bool // the value is a PrimitiveNode's, which counts as typed into the widget
}

// input follows the link of an input to its origin; nil if nothing that runs is at its other end. kind is the type
// that is wanted there, "" for the input's own.
func (c *conversion) input(f *frame, n *node, slot int, kind string) *origin {
	if c.left--; c.left < 0 || slot < 0 || slot >= len(n.inputs) {
		return nil
	}
	l, ok := f.links[n.inputs[slot].link]
	if !ok || n.inputs[slot].link == "" {
		return nil
	}
	if kind == "" {
		kind = n.inputs[slot].kind
	}
	if l.from != ioNode || f.parent == nil {
		from := f.byID[l.from]
		if from == nil {
			return nil
		}
		return c.output(f, from, l.fromSlot, kind)
	}
	if l.fromSlot < 0 || l.fromSlot >= len(f.inputs) {
		return nil
	}
	outer := named(f.instance.inputs, f.inputs[l.fromSlot].name) // its counterpart outside
	if outer >= 0 && f.instance.inputs[outer].link != "" {
		return c.input(f.parent, f.instance, outer, kind)
	}
	if v, ok := c.promoted(f, l.fromSlot); ok {
		return &origin{value: v}
	}
	return nil
}

// promoted returns the value of the widget that an instance shows for an input of its subgraph: the value that the
// instance holds, or else that of the first widget behind the input.
func (c *conversion) promoted(f *frame, slot int) (any, bool) {
	if v, ok := f.given[f.inputs[slot].name]; ok {
		return v, true
	}
	for _, id := range f.inputs[slot].links {
		l, ok := f.links[id]
		target := f.byID[l.to]
		if c.left--; !ok || target == nil {
			continue
		}
		if v, ok := c.shown(f, target, l.toSlot); ok {
			return v, true
		}
	}
	return nil, false
}

// shown returns the value of the widget that an input stands for, as its node holds it.
func (c *conversion) shown(f *frame, n *node, slot int) (any, bool) {
	if c.left--; c.left < 0 || slot < 0 || slot >= len(n.inputs) {
		return nil, false
	}
	p := n.inputs[slot]
	if child := f.children[n.id]; child != nil {
		if i := named(child.inputs, p.name); i >= 0 {
			return c.promoted(child, i)
		}
		return nil, false
	}
	if p.widget == "" {
		return nil, false
	}
	return c.widgets(f, n).Get(p.widget)
}

// output follows an output to its origin, through whatever does not run.
func (c *conversion) output(f *frame, n *node, slot int, kind string) *origin {
	if c.left--; c.left < 0 {
		return nil
	}
	if n.kind == typePrimitive { // it sets the widgets that it is linked to, in whatever mode
		if v, ok := f.primitive(n); ok {
			return &origin{value: v, typed: true}
		}
		return nil
	}
	switch {
	case n.mode == modeMuted:
		return nil
	case n.mode == modeBypassed:
		if i := bypass(n, slot, kind); i >= 0 {
			return c.input(f, n, i, "")
		}
		return nil
	case n.kind == typeReroute:
		return c.input(f, n, slot, kind)
	}
	child := f.children[n.id]
	if child == nil {
		return &origin{id: f.path + n.id, slot: slot}
	}
	if slot < 0 || slot >= len(child.outputs) {
		return nil
	}
	for _, id := range child.outputs[slot].links {
		if l, ok := child.links[id]; ok && child.byID[l.from] != nil {
			return c.output(child, child.byID[l.from], l.fromSlot, kind)
		}
	}
	return nil
}

// primitive returns the value of a PrimitiveNode.
func (f *frame) primitive(n *node) (any, bool) {
	if v, ok := f.host[[2]string{n.id, "value"}]; ok {
		return v, true
	}
	if v, ok := n.named.Get("value"); ok {
		return v, true
	}
	if values := list(n.values); len(values) > 0 {
		return values[0], true
	}
	return nil, false
}

// bypass returns the input that a bypassed node passes on to an output: the one at the same index if it fits, else the
// first of exactly the wanted type, else the first that fits; -1 if there is none.
func bypass(n *node, slot int, kind string) int {
	if slot < 0 || slot >= len(n.outputs) {
		return -1
	}
	if kind == "*" || kind == "" {
		if slot < len(n.inputs) {
			return slot
		}
		return min(0, len(n.inputs)-1)
	}
	out := n.outputs[slot].kind
	fits := func(p port) bool { return connects(p.kind, out) && connects(p.kind, kind) }
	if slot < len(n.inputs) && fits(n.inputs[slot]) {
		return slot
	}
	if i := slices.IndexFunc(n.inputs, func(p port) bool { return p.kind == kind }); i >= 0 {
		return i
	}
	return slices.IndexFunc(n.inputs, fits)
}

// connects reports whether the editor lets two types be linked: either is a wildcard, or they have a member in common,
// whatever its case.
func connects(a, b string) bool {
	if a == "" || b == "" || a == "*" || b == "*" {
		return true
	}
	for x := range strings.SplitSeq(strings.ToLower(a), ",") {
		for y := range strings.SplitSeq(strings.ToLower(b), ",") {
			if x == y || x == "*" || y == "*" {
				return true
			}
		}
	}
	return false
}

// widgets returns the values of a node's widgets by name, including those that the enclosing instance gives.
func (c *conversion) widgets(f *frame, n *node) *pyjson.Object {
	entry := c.describe(n.kind)
	if entry == nil {
		return pyjson.NewObject()
	}
	out := widgetsOf(n, entry)
	for _, name := range out.Keys() {
		if v, ok := f.host[[2]string{n.id, name}]; ok {
			out.Set(name, v)
		}
	}
	return out
}
