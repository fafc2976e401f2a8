package rank

import (
	"maps"
	"sync"

	"patchbay/engine"
)

// SkipStore holds the outputs of blocks that a later block of the same stage takes, addressed by entry, block and token
// like the K/V store. The lanes of a stage share one: a micro-step's up lane reads what its down lane wrote, and the
// next evaluation of the same tokens starts only after that. An up lane also lends its down lane its store of keys and
// values there.
type SkipStore struct {
	mu sync.Mutex
	at map[skipKey]kept
}

// kept is what a session keeps at a key.
type kept struct {
	output engine.Tensor // [B, rows of this rank's share of the picture, E]
	store  *kvStore      // of an up lane, where block is backStore
}

// backStore stands for the block in the key of a store of keys and values.
const backStore = -1

type skipKey struct {
	session uint64
	entry   int
	block   int
}

// NewSkipStore makes an empty one.
func NewSkipStore() *SkipStore { return &SkipStore{at: map[skipKey]kept{}} }

func (s *SkipStore) put(k skipKey, v kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[k] = v
}

// get is what put has stored, zero: nothing.
func (s *SkipStore) get(k skipKey) kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[k]
}

// len counts what is kept.
func (s *SkipStore) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at)
}

// forget drops what a session kept.
func (s *SkipStore) forget(session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.at, func(k skipKey, _ kept) bool { return k.session == session })
}
