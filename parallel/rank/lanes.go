package rank

import (
	"maps"
	"sync"

	"patchbay/engine"
	"patchbay/models/dit"
)

// lane is the part of a pipeline that a rank runs. Micro-steps of a folded pipeline go through the down lanes of all
// stages and come back through up lanes.
type lane struct {
	held dit.Range // its blocks
	up   bool
	back dit.Range // of a down lane: the blocks of its stage's up lane; none on the last stage and without a fold
}

// newLane returns the lane at a place along the pipe axis of a plan. lanes are those of OpenCommand.
func newLane(lanes []dit.Range, stages, at, blocks int) lane {
	if len(lanes) == 0 {
		return lane{held: dit.Range{End: blocks}}
	}
	l := lane{held: lanes[at], up: at >= stages}
	if back := len(lanes) - 1 - at; back >= stages {
		l.back = lanes[back]
	}
	return l
}

// LaneStore is what the lanes of one stage share. Outputs of blocks that a later block of the stage reads are addressed
// by entry, block and token like the K/V store: a micro-step's up lane reads what its down lane wrote, and the next
// evaluation of the same tokens starts only after that. In spread evaluations the down lane writes into the K/V stores
// of its up lane.
type LaneStore struct {
	mu      sync.Mutex
	outputs map[skipKey]engine.Tensor // [B, rows of this rank's share of the picture, E]
	stores  map[entryKey]attention    // of up lanes
}

// entryKey is an entry of a session.
type entryKey struct {
	id    uint64 // of the session
	entry int
}

// skipKey is the output of a block for an entry.
type skipKey struct {
	entryKey
	block int
}

// NewLaneStore makes an empty LaneStore.
func NewLaneStore() *LaneStore {
	return &LaneStore{outputs: map[skipKey]engine.Tensor{}, stores: map[entryKey]attention{}}
}

func (s *LaneStore) put(k skipKey, output engine.Tensor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outputs[k] = output
}

// output returns what put has stored, or the zero value.
func (s *LaneStore) output(k skipKey) engine.Tensor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outputs[k]
}

func (s *LaneStore) putStore(k entryKey, m attention) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stores[k] = m
}

// store returns what putStore has stored, or nil.
func (s *LaneStore) store(k entryKey) attention {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stores[k]
}

// len returns the number of outputs and stores that are kept.
func (s *LaneStore) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.outputs) + len(s.stores)
}

// forget drops what a session kept.
func (s *LaneStore) forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.outputs, func(k skipKey, _ engine.Tensor) bool { return k.id == id })
	maps.DeleteFunc(s.stores, func(k entryKey, _ attention) bool { return k.id == id })
}
