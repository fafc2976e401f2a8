package rank

import (
	"maps"
	"sync"

	"patchbay/engine"
)

// LaneStore is what the lanes of one stage share. Outputs of blocks that a later block of the stage reads are addressed
// by entry, block and token like the K/V store: a micro-step's up lane reads what its down lane wrote, and the next
// evaluation of the same tokens starts only after that. An up lane also lends its K/V stores to its down lane.
type LaneStore struct {
	mu      sync.Mutex
	outputs map[skipKey]engine.Tensor // [B, rows of this rank's share of the picture, E]
	lent    map[entryKey]*kvStore
}

// entryKey is an entry of a session.
type entryKey struct {
	session uint64
	entry   int
}

// skipKey is the output of a block for an entry.
type skipKey struct {
	entryKey
	block int
}

// NewLaneStore makes an empty LaneStore.
func NewLaneStore() *LaneStore {
	return &LaneStore{outputs: map[skipKey]engine.Tensor{}, lent: map[entryKey]*kvStore{}}
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

func (s *LaneStore) lend(k entryKey, store *kvStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent[k] = store
}

// borrowed returns the store that lend was called with, or nil.
func (s *LaneStore) borrowed(k entryKey) *kvStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent[k]
}

// len returns the number of outputs and stores that are kept.
func (s *LaneStore) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.outputs) + len(s.lent)
}

// forget drops what a session kept.
func (s *LaneStore) forget(session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.outputs, func(k skipKey, _ engine.Tensor) bool { return k.session == session })
	maps.DeleteFunc(s.lent, func(k entryKey, _ *kvStore) bool { return k.session == session })
}
