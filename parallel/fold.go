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

// laneRanges cuts the blocks over the lanes of a plan. spec may be of either kind.
func laneRanges(spec *dit.Spec, lt, li, lanes int) []lane {
	if !skips(spec) || lanes == 1 {
		return stageLanes(spec, lt, li, lanes)
	}
	n := len(spec.Blocks)
	cost := blockCosts(spec, lt, li)
	folded := make([]float64, n/2)
	for i := range folded {
		folded[i] = cost[i] + cost[n-1-i]
	}
	if n%2 == 1 {
		folded[n/2-1] += cost[n/2] // the middle block stays with its neighbours
	}
	parts := (lanes + 1) / 2
	out := make([]dit.Range, lanes)
	for s, r := range stages(folded, parts, [2]float64{}) {
		if s == parts-1 {
			out[s] = dit.Range{Start: r.Start, End: n - r.Start}
			continue
		}
		out[s] = r
		out[lanes-1-s] = dit.Range{Start: n - r.End, End: n - r.Start}
	}
	return whole(out)
}

// skipStore holds the outputs of blocks that a later block of the same stage takes, addressed by entry, block and token like the K/V store. The lanes of
// a stage share one: a micro-step's up lane reads what its down lane wrote, and the next evaluation of the same tokens starts only after that.
type skipStore struct {
	mu sync.Mutex
	at map[skipKey]engine.Tensor // [B, rows of this rank's share of the picture, E]
}

type skipKey struct {
	session uint64
	entry   int
	block   int
}

func newSkipStore() *skipStore { return &skipStore{at: map[skipKey]engine.Tensor{}} }

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

// forget drops what a session kept.
func (s *skipStore) forget(session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.at {
		if k.session == session {
			delete(s.at, k)
		}
	}
}
