package graph

import "slices"

// worklist is the list of nodes that a run still has to execute, with what each waits for (ComfyUI 0.8.0,
// comfy_execution/graph.py: users see which of the ready nodes is picked).
type worklist struct {
	w        *Workflow
	cat      *Catalogue
	pending  []string            // not yet executed, in the order in which they were found
	waits    map[string]int      // number of unfinished sources
	blocks   map[string][]string // nodes that wait for a node, each once
	isCached func(id string) bool
	lazy     bool            // lazy inputs count as needed
	asked    map[string]bool // nodes that have named the lazy inputs that they want
}

// newWorklist finds the nodes that the outputs need. Sources with a cached value are not followed, and those of lazy
// inputs only if lazy is set.
func newWorklist(
	w *Workflow, cat *Catalogue, outputs []string, cached func(id string) bool, lazy bool,
) *worklist {
	p := &worklist{
		w: w, cat: cat, waits: map[string]int{}, blocks: map[string][]string{}, isCached: cached, lazy: lazy,
		asked: map[string]bool{},
	}
	for _, o := range outputs {
		p.add(o)
	}
	return p
}

// add adds a node and what it needs, last input first, in the order of a stack.
func (p *worklist) add(id string) {
	for stack := []string{id}; len(stack) > 0; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if _, known := p.waits[id]; known {
			continue
		}
		p.waits[id] = 0
		p.pending = append(p.pending, id)
		inputs := p.w.inputs(id)
		declared := p.cat.classes[p.w.Class(id)].declared(inputs.Get)
		for _, name := range inputs.Keys() {
			if in := find(declared, name); in == nil || in.Lazy && !p.lazy {
				continue
			}
			if source := p.wait(id, name); source != "" {
				stack = append(stack, source)
			}
		}
	}
}

// wait makes a node wait for the source of an input and returns that source; "" if there is none to wait for.
func (p *worklist) wait(id, name string) string {
	l, linked := asLink(p.w.inputs(id).At(name))
	if !linked || p.isCached(l.id) {
		return ""
	}
	if !slices.Contains(p.blocks[l.id], id) {
		p.waits[id]++
		p.blocks[l.id] = append(p.blocks[l.id], id)
	}
	return l.id
}

// ask makes a node wait for the lazy inputs that it wants and reports whether it has to wait.
func (p *worklist) ask(id string, names []string) bool {
	p.asked[id] = true
	for _, name := range names {
		if source := p.wait(id, name); source != "" {
			p.add(source)
		}
	}
	return p.waits[id] > 0
}

// next picks a ready node: an output, else one whose value an output waits for, else one two links before an output,
// else the first found.
func (p *worklist) next() (string, bool) {
	var ready []string
	for _, id := range p.pending {
		if p.waits[id] == 0 {
			ready = append(ready, id)
		}
	}
	if len(ready) == 0 {
		return "", false
	}
	for hops := range 3 {
		for _, id := range ready {
			if p.reaches(id, hops) {
				return id, true
			}
		}
	}
	return ready[0], true
}

// reaches reports whether an output lies exactly hops links after a node.
func (p *worklist) reaches(id string, hops int) bool {
	if hops == 0 {
		return p.cat.classes[p.w.Class(id)].Output
	}
	for _, b := range p.blocks[id] {
		if p.reaches(b, hops-1) {
			return true
		}
	}
	return false
}

// finish takes a node off the list and releases the nodes that wait for it.
func (p *worklist) finish(id string) {
	at := slices.Index(p.pending, id)
	p.pending = slices.Delete(p.pending, at, at+1)
	for _, b := range p.blocks[id] {
		p.waits[b]--
	}
}
