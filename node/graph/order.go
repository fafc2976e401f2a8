package graph

// worklist is the list of nodes that a run still has to execute, with what each waits for (ComfyUI 0.8.0,
// comfy_execution/graph.py: the pick among ready nodes is part of what users see).
type worklist struct {
	w        *Workflow
	cat      *Catalogue
	pending  []string            // not yet executed, in the order in which they were found
	waits    map[string]int      // unfinished sources
	blocks   map[string][]string // nodes that wait for a node, each once
	isCached func(id string) bool
	isOutput func(id string) bool
}

// newWorklist finds the nodes that the outputs need. Sources with a cached value are not walked.
func newWorklist(w *Workflow, cat *Catalogue, outputs []string, cached func(id string) bool) *worklist {
	p := &worklist{w: w, cat: cat, waits: map[string]int{}, blocks: map[string][]string{}, isCached: cached}
	p.isOutput = func(id string) bool { return cat.classes[w.Class(id)].Output }
	for _, o := range outputs {
		p.add(o)
	}
	return p
}

// add finds a node and what it needs, last input first, as a stack gives it.
func (p *worklist) add(id string) {
	for stack := []string{id}; len(stack) > 0; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if _, known := p.waits[id]; known {
			continue
		}
		p.waits[id] = 0
		p.pending = append(p.pending, id)
		seen := map[string]bool{}
		k := p.cat.classes[p.w.Class(id)]
		inputs := p.w.inputs(id)
		for _, name := range inputs.Keys() {
			l, linked := asLink(inputs.At(name))
			if !linked || k.Input(name) == nil || p.isCached(l.id) {
				continue
			}
			stack = append(stack, l.id)
			if !seen[l.id] {
				seen[l.id] = true
				p.waits[id]++
				p.blocks[l.id] = append(p.blocks[l.id], id)
			}
		}
	}
}

// next picks a ready node: an output, else one whose value an output waits for, else two hops before an output, else
// the first found.
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

// reaches reports whether an output lies exactly so many links behind a node.
func (p *worklist) reaches(id string, hops int) bool {
	if hops == 0 {
		return p.isOutput(id)
	}
	for _, b := range p.blocks[id] {
		if p.reaches(b, hops-1) {
			return true
		}
	}
	return false
}

// finish takes a node off the list.
func (p *worklist) finish(id string) {
	for i := range p.pending {
		if p.pending[i] == id {
			p.pending = append(p.pending[:i], p.pending[i+1:]...)
			break
		}
	}
	for _, b := range p.blocks[id] {
		p.waits[b]--
	}
}
