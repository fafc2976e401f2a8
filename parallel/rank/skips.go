package rank

import (
	"maps"
	"sync"

	"patchbay/engine"
)

// SkipStore holds the outputs of blocks that a later block of the same stage reads, addressed by entry, block and token
// like the K/V store. The lanes of a stage share one: a micro-step's up lane reads what its down lane wrote, and the
// next evaluation of the same tokens starts only after that. It is also where an up lane lends its K/V store to its
// down lane.
type SkipStore struct {
	mu sync.Mutex
	at map[skipKey]kept
}

// kept is what a session keeps under a key.
type kept struct {
	output engine.Tensor // [B, rows of this rank's share of the picture, E]
	store  *kvStore      // K/V store of an up lane, under backStore
}

// backStore takes the place of the block in the key of a K/V store.
const backStore = -1

type skipKey struct {
	session uint64
	entry   int
	block   int
}

// NewSkipStore makes an empty SkipStore.
func NewSkipStore() *SkipStore { return &SkipStore{at: map[skipKey]kept{}} }

func (s *SkipStore) put(k skipKey, v kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[k] = v
}

// get returns what put has stored, or the zero value.
func (s *SkipStore) get(k skipKey) kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[k]
}

// len returns the number of values that are kept.
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
