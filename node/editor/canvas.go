package editor

import (
	"cmp"
	"slices"

	"patchbay/node/pyjson"
)

// Modes in which a node does not run; in every other mode it does.
const (
	modeMuted    = 2
	modeBypassed = 4
)

// ioNode is the origin id of those links inside a subgraph that start at the subgraph's inputs.
const ioNode = "-10"

// Types of nodes that exist in the editor only.
const (
	typeReroute   = "Reroute"
	typePrimitive = "PrimitiveNode"
	typeNote      = "Note"
	typeMarkdown  = "MarkdownNote"
)

// canvas is one level of a graph: the top level, or the definition of a subgraph.
type canvas struct {
	id, name string
	nodes    []*node // in the editor's order of execution
	listed   []*node // in the order of the file
	byID     map[string]*node
	links    map[string]link
	inputs   []port // of a subgraph
	outputs  []port
}

// node is a box on a canvas.
type node struct {
	id, kind, title string
	mode, order     int64
	inputs, outputs []port
	values          any            // widgets_values: a list, or an object by name
	named           *pyjson.Object // values by name: widgets_values_named, or else widgets_values if it is an object
	properties      *pyjson.Object
}

// port is an input or output of a node or of a subgraph.
type port struct {
	name, kind string
	link       string   // id of the link that ends at an input; "" if there is none
	widget     string   // name of the widget that an input stands for
	links      []string // ids of the links of a subgraph's port, inside the subgraph
}

// link leads from an output to an input; from and to are ids of nodes.
type link struct {
	from, to         string
	fromSlot, toSlot int
}

// parse reads a canvas. Values of an unexpected type are left out.
func parse(o *pyjson.Object) *canvas {
	c := &canvas{
		id: key(o.At("id")), name: o.Text("name"), byID: map[string]*node{}, links: map[string]link{},
		inputs: ports(o.At("inputs")), outputs: ports(o.At("outputs")),
	}
	for _, v := range list(o.At("nodes")) {
		n, ok := v.(*pyjson.Object)
		if !ok {
			continue
		}
		b := &node{
			id: key(n.At("id")), kind: n.Text("type"), title: n.Text("title"), mode: integer(n.At("mode")),
			inputs: ports(n.At("inputs")), outputs: ports(n.At("outputs")), values: n.At("widgets_values"),
			properties: n.In("properties"), order: integer(n.At("order")),
		}
		if b.named = n.In("widgets_values_named"); b.named == nil {
			b.named, _ = b.values.(*pyjson.Object)
		}
		c.nodes = append(c.nodes, b)
		c.byID[b.id] = b
	}
	c.listed = slices.Clone(c.nodes)
	slices.SortStableFunc(c.nodes, func(a, b *node) int { return cmp.Compare(a.order, b.order) })
	for _, v := range list(o.At("links")) {
		switch l := v.(type) {
		case []any: // [id, from, slot, to, slot, type]
			if len(l) >= 5 {
				c.links[key(l[0])] = link{key(l[1]), key(l[3]), int(integer(l[2])), int(integer(l[4]))}
			}
		case *pyjson.Object:
			c.links[key(l.At("id"))] = link{
				key(l.At("origin_id")), key(l.At("target_id")),
				int(integer(l.At("origin_slot"))), int(integer(l.At("target_slot"))),
			}
		}
	}
	return c
}

func ports(v any) []port {
	var out []port
	for _, item := range list(v) {
		o, _ := item.(*pyjson.Object) // one that is no object is kept empty, so that the others keep their slots
		p := port{name: o.Text("name"), kind: o.Text("type"), link: key(o.At("link")), widget: o.In("widget").Text("name")}
		for _, id := range list(o.At("linkIds")) {
			p.links = append(p.links, key(id))
		}
		out = append(out, p)
	}
	return out
}

// named returns the index of the port with the given name, -1 if there is none.
func named(ports []port, name string) int {
	return slices.IndexFunc(ports, func(p port) bool { return p.name == name })
}

// key returns an id, which is a number or text, as text.
func key(v any) string {
	switch v.(type) {
	case int64, string:
		return pyjson.Str(v)
	}
	return ""
}

func str(v any) string {
	s, _ := v.(string)
	return s
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func integer(v any) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	}
	return 0
}
