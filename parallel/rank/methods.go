package rank

import "patchbay/parallel/plan"

// newAttention returns the method by which the ranks of a plan attend to one entry.
func newAttention(p plan.Plan, l lane, lanes *LaneStore, entry entryKey) attention {
	newStore, elsewhere := func() attention { return &stored{} }, attention(&spare{})
	if p.KV8 {
		newStore, elsewhere = func() attention { return &stored8{} }, &passing{}
	}
	var m attention
	switch {
	case p.Spread && l.up:
		m = &sharedStore{newStore(), lanes, entry}
	case p.Spread:
		m = &spread{newStore: newStore, elsewhere: elsewhere, lane: l, lanes: lanes, entry: entry}
	case p.Pipe > 1:
		m = newStore()
	case p.InOrder():
		m = &passing{}
	case p.Gathers():
		m = gatheredAttention{}
	default:
		m = ringAttention{}
	}
	if p.Ulysses > 1 {
		m = ulyssesAttention{m}
	}
	return m
}
