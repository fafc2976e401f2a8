package parallel

import (
	"sync"

	"patchbay/engine"
	"patchbay/models/dit"
)

// Models whose later blocks take the output of earlier ones run on folded stages: a stage owns blocks [a, b) and their mirror images [N-b, N-a),
// micro-steps travel down through the first halves and back up through the mirrors, so an output that is kept for later never leaves its device. Down
// and up are lanes of their own, each with its commands in order; the last stage has one lane in the middle. Any number of stages works.

// lanes returns how many stops a micro-step makes on its way through the pipeline.
func (p Plan) lanes(folded bool) int {
	if folded {
		return 2*p.Pipe - 1
	}
	return p.Pipe
}

// cutLanes cuts the blocks over the lanes of a plan by what they cost.
func (o *outline) cutLanes() []lane {
	n, lanes := len(o.Spec.Blocks), o.plan.lanes(skips(o.Spec))
	if lanes == 1 {
		return whole([]dit.Range{{End: n}})
	}
	if o.plan.owns() {
		return o.plan.ownLanes(o.Spec, o.Device)
	}
	costs, ends := o.blockSeconds()
	return lanesBy(o.Spec, costs, ends, o.plan.Pipe)
}

// lanesBy cuts blocks of given costs over the lanes of so many stages.
func lanesBy(spec *dit.Spec, costs []blockCost, ends [2]float64, parts int) []lane {
	if skips(spec) {
		return foldedLanes(spec, costs, ends, parts)
	}
	return stageLanes(spec, costs, ends, parts)
}

// foldedLanes cuts the first half of the blocks and its mirror image over stages, embedding and head on the first one. A cut in the middle of block b is
// one in the middle of its mirror image N-1-b too: the output of b is made behind the cut, and taken before the other one, so it stays where it is.
func foldedLanes(spec *dit.Spec, costs []blockCost, ends [2]float64, parts int) []lane {
	n := len(costs)
	pairs := pieces{}
	halves := n/2 >= 2*parts
	for b := range n / 2 {
		down, up := costs[b], costs[n-1-b]
		switch middle := n%2 == 1 && b == n/2-1; {
		case middle: // the block in the middle stays with its neighbours
			pairs.add(b, dit.WholeBlock, down.whole()+costs[n/2].whole()+up.whole())
		case halves && spec.Blocks[b].Cuts && spec.Blocks[n-1-b].Cuts:
			pairs.add(b, dit.AttentionHalf, down.attention+up.mlp)
			pairs.add(b, dit.MLPHalf, down.mlp+up.attention)
		default:
			pairs.add(b, dit.WholeBlock, down.whole()+up.whole())
		}
	}
	out := make([]lane, 2*parts-1)
	for s, l := range pairs.lanes(stages(pairs.cost, parts, [2]float64{ends[0] + ends[1]})) {
		if s == parts-1 {
			l.End = n - l.Start
			l.Early = l.Late
			out[s] = l
			continue
		}
		out[s] = l
		out[2*parts-2-s] = lane{Range: dit.Range{Start: n - l.End, End: n - l.Start}, Late: l.Early, Early: l.Late}
	}
	return out
}

// skipStore holds the outputs of blocks that a later block of the same stage takes, addressed by entry, block and token like the K/V store. The lanes of
// a stage share one: a micro-step's up lane reads what its down lane wrote, and the next evaluation of the same tokens starts only after that.
type skipStore struct {
	mu sync.Mutex
	at map[skipKey]engine.Tensor // [B, rows of this rank's share of the picture, E]
	kv map[skipKey]*kvStore      // of up lanes, lent to their down lanes; block is backStore
}

// backStore stands for the block in the key of a store of keys and values.
const backStore = -1

type skipKey struct {
	session uint64
	entry   int
	block   int
}

func newSkipStore() *skipStore {
	return &skipStore{at: map[skipKey]engine.Tensor{}, kv: map[skipKey]*kvStore{}}
}

func (s *skipStore) put(k skipKey, t engine.Tensor) {
	s.mu.Lock()
	s.at[k] = t
	s.mu.Unlock()
}

func (s *skipStore) get(k skipKey) engine.Tensor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[k]
}

// lend shows the store of an up lane to its down lane.
func (s *skipStore) lend(k skipKey, store *kvStore) {
	s.mu.Lock()
	s.kv[k] = store
	s.mu.Unlock()
}

// lent is what lend has shown, nil: nothing.
func (s *skipStore) lent(k skipKey) *kvStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kv[k]
}

// forget drops what a session kept.
func (s *skipStore) forget(session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.at {
		if k.session == session {
			delete(s.at, k)
		}
	}
	for k := range s.kv {
		if k.session == session {
			delete(s.kv, k)
		}
	}
}
