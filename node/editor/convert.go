package editor

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"patchbay/fault"
	"patchbay/node/pyjson"
)

// Limits of a conversion.
const (
	maxNodes = 10000   // once subgraphs are expanded
	maxDepth = 32      // instances inside instances
	maxSteps = 1 << 18 // links followed
)

// Is reports whether an object is a graph in the editor's format: it has nodes and links, and neither is a node.
func Is(o *pyjson.Object) bool {
	_, nodes := o.At("nodes").([]any)
	_, links := o.At("links").([]any)
	return nodes && links
}

// conversion is the state of converting one graph.
type conversion struct {
	describe  func(class string) *pyjson.Object
	now       time.Time // in file names
	root      *frame
	aliases   map[string]found // by name, see find
	titles    map[string]found
	defs      map[string]*canvas
	nodeCount int // nodes of all frames
	left      int // links that may still be followed, as reroutes may form a circle
	out       map[string]*pyjson.Object
	order     []string
}

// Convert returns the graph in API format: node id -> {inputs, class_type, _meta}. describe returns the object_info
// entry of a class, nil if there is none. Nodes inside subgraphs have ids "instance:node". The failure is
// workflow_format_ui with the reason (group nodes, subgraphs that contain themselves, links in a circle),
// missing_node_type for a class without a description, or workflow_too_large.
func Convert(graph *pyjson.Object, describe func(class string) *pyjson.Object) (*pyjson.Object, *fault.Error) {
	return convert(graph, describe, time.Now())
}

func convert(graph *pyjson.Object, describe func(class string) *pyjson.Object, now time.Time) (*pyjson.Object,
	*fault.Error,
) {
	c := &conversion{
		describe: describe, now: now, defs: map[string]*canvas{}, out: map[string]*pyjson.Object{},
		left: maxSteps,
	}
	for _, v := range list(graph.In("definitions").At("subgraphs")) {
		if o, ok := v.(*pyjson.Object); ok {
			def := parse(o)
			c.defs[def.id] = def
		}
	}
	c.root = &frame{canvas: parse(graph)}
	if f := c.expand(c.root, 0); f != nil {
		return nil, f
	}
	if f := c.emit(c.root); f != nil {
		return nil, f
	}
	if c.left < 0 {
		return nil, fault.New(fault.WorkflowFormatUI, "links lead in a circle, or more than %d have to be followed",
			maxSteps)
	}
	return c.result(), nil
}

// expand creates the frames of all instances of subgraphs below f.
func (c *conversion) expand(f *frame, depth int) *fault.Error {
	f.children = map[string]*frame{}
	if c.nodeCount += len(f.nodes); c.nodeCount > maxNodes {
		return fault.New(fault.WorkflowTooLarge, "the workflow has more than %d nodes when its subgraphs are written out",
			maxNodes)
	}
	for _, n := range f.nodes {
		def := c.defs[n.kind]
		if def == nil {
			continue
		}
		if depth >= maxDepth {
			return refused(n, "subgraphs are nested deeper than %d levels, or one holds itself: %s", maxDepth,
				pyjson.Excerpt(def.name))
		}
		child := &frame{canvas: def, path: f.path + n.id + ":", parent: f, instance: n}
		f.children[n.id] = child
		if fail := c.expand(child, depth+1); fail != nil {
			return fail
		}
		child.host, child.given = map[[2]string]any{}, map[string]any{}
		c.readInstanceValues(child)
	}
	return nil
}

// refused returns the failure for a node that cannot be converted.
func refused(n *node, format string, args ...any) *fault.Error {
	f := fault.New(fault.WorkflowFormatUI, format, args...)
	f.Node, f.Class = n.id, pyjson.Excerpt(n.kind)
	return f
}

// readInstanceValues reads the values that an instance holds for widgets inside it: those that properties.proxyWidgets
// names or, without that, those of its inputs that stand for widgets, in order. Values that it holds by name win,
// unless proxies share the name.
func (c *conversion) readInstanceValues(f *frame) {
	values := list(f.instance.values)
	value := func(i int, name string) any {
		if v, ok := f.instance.named.Get(name); ok {
			return v
		}
		if i < len(values) {
			return values[i]
		}
		return nil
	}
	proxies, listed := f.instance.properties.At("proxyWidgets").([]any)
	if !listed {
		i := 0
		for slot, p := range f.inputs {
			if _, isWidget := c.promoted(f, slot); !isWidget {
				continue
			}
			if v := value(i, p.name); v != nil || i < len(values) {
				f.given[p.name] = v
			}
			i++
		}
		return
	}
	count := map[string]int{}
	for _, v := range proxies {
		if pair := list(v); len(pair) >= 2 {
			count[str(pair[1])]++
		}
	}
	for i, v := range proxies {
		pair := list(v)
		if len(pair) < 2 {
			continue
		}
		name := str(pair[1])
		if count[name] > 1 {
			name = "" // no value has this name
		}
		if v := value(i, name); v != nil {
			c.setInstanceValue(f, key(pair[0]), str(pair[1]), v)
		}
	}
}

// setInstanceValue gives one widget inside a subgraph the value that the instance holds for it.
func (c *conversion) setInstanceValue(f *frame, id, name string, value any) {
	if id == "-1" {
		f.given[name] = value
		return
	}
	n := f.byID[id]
	if n == nil {
		return
	}
	for _, p := range n.inputs { // it may be linked to an input of the subgraph, which then takes the value
		if l := f.links[p.link]; p.link != "" && l.from == ioNode && (p.widget == name || p.name == name) &&
			l.fromSlot >= 0 && l.fromSlot < len(f.inputs) {
			f.given[f.inputs[l.fromSlot].name] = value
			return
		}
	}
	child := f.children[id]
	if child == nil {
		f.host[[2]string{id, name}] = value
		return
	}
	if named(child.inputs, name) >= 0 {
		child.given[name] = value
		return
	}
	for { // older files put the ids of the nodes in front: "5: seed"
		head, rest, ok := strings.Cut(name, ":")
		if head = strings.TrimSpace(head); !ok || head == "" || strings.Trim(head, "0123456789") != "" {
			break
		}
		id, name = head, strings.TrimSpace(rest)
	}
	for _, n := range child.nodes {
		if n.id == id || c.describe(n.kind) != nil && c.widgets(child, n).Has(name) {
			c.setInstanceValue(child, n.id, name, value)
			return
		}
	}
}

// emit converts the nodes of a frame and of the frames below it.
func (c *conversion) emit(f *frame) *fault.Error {
	for _, n := range f.nodes {
		if n.mode == modeMuted || n.mode == modeBypassed {
			continue
		}
		if child := f.children[n.id]; child != nil {
			if fail := c.emit(child); fail != nil {
				return fail
			}
			continue
		}
		switch n.kind {
		case typeReroute, typePrimitive, typeNote, typeMarkdown:
			continue
		}
		if strings.HasPrefix(n.kind, "workflow>") || strings.HasPrefix(n.kind, "workflow/") {
			return refused(n, "node %s is a group node (%s), which ComfyUI's editor no longer has: open the workflow there "+
				"and convert it to a subgraph, or export it in API format", n.id, pyjson.Excerpt(n.kind))
		}
		entry := c.describe(n.kind)
		if n.kind == "" || entry == nil {
			return unknown(f, n)
		}
		c.node(f, n, entry)
	}
	return nil
}

// unknown returns the failure for a class without a description, in the words of validation.
func unknown(f *frame, n *node) *fault.Error {
	title, id := cmp.Or(n.title, n.kind), f.path+n.id
	return &fault.Error{
		Code: fault.MissingNodeType, Node: id, Class: pyjson.Excerpt(n.kind),
		Text:    NotFound(n.kind, title),
		Details: "Node ID '#" + id + "'",
		Extra:   map[string]any{"node_id": id, "class_type": pyjson.Excerpt(n.kind), "node_title": pyjson.Excerpt(title)},
	}
}

// node converts one node: first the values of its widgets, then what its links give.
func (c *conversion) node(f *frame, n *node, entry *pyjson.Object) {
	inputs := pyjson.NewObject()
	values := c.widgets(f, n)
	for _, name := range values.Keys() {
		inputs.Set(name, wrapped(c.typed(n, name, values.At(name))))
	}
	for i, p := range n.inputs {
		from := c.input(f, n, i, "")
		switch {
		case from == nil:
		case from.typed:
			inputs.Set(p.name, wrapped(c.typed(n, p.name, from.value)))
		case from.id == "":
			inputs.Set(p.name, wrapped(from.value))
		default:
			inputs.Set(p.name, []any{from.id, int64(from.slot)})
		}
	}
	if n.kind == customCombo {
		setIndex(inputs, values.At("choice"))
	}
	for _, group := range []string{"required", "optional"} {
		dynamicTexts(inputs, entry.In("input").In(group))
	}
	title := cmp.Or(n.title, entry.Text("display_name"), n.kind)
	id := f.path + n.id
	c.order = append(c.order, id)
	c.out[id] = pyjson.NewObject("inputs", inputs, "class_type", n.kind, "_meta", pyjson.NewObject("title", title))
}

// wrapped marks a list as a value: a bare list is a link.
func wrapped(v any) any {
	if l, ok := v.([]any); ok {
		return pyjson.NewObject("__value__", l)
	}
	return v
}

// dynamicTexts resolves the dynamic prompts in texts whose inputs are declared with dynamicPrompts.
func dynamicTexts(inputs, specs *pyjson.Object) {
	for _, name := range specs.Keys() {
		text, isText := inputs.At(name).(string)
		if _, options := config(specs.At(name)); isText && options.At("dynamicPrompts") == true {
			inputs.Set(name, plainPrompt(text))
		}
	}
}

// result returns the nodes in the key order of a JavaScript object: ids that are numbers first, ascending.
func (c *conversion) result() *pyjson.Object {
	number := func(id string) int {
		n, err := strconv.Atoi(id)
		if err != nil || n < 0 {
			return 1<<62 - 1
		}
		return n
	}
	slices.SortStableFunc(c.order, func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	out := pyjson.NewObject()
	for _, id := range c.order {
		inputs := c.out[id].In("inputs")
		resolved := pyjson.NewObject()
		for _, name := range inputs.Keys() {
			v := inputs.At(name)
			if l := list(v); len(l) == 2 && c.out[str(l[0])] == nil {
				continue // its source is not in the result
			}
			resolved.Set(name, v)
		}
		c.out[id].Set("inputs", resolved)
		out.Set(id, c.out[id])
	}
	return out
}
