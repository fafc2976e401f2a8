package rank

import (
	"sync"

	"patchbay/engine"
)

// SkipStore holds the outputs of blocks that a later block of the same stage takes, addressed by entry, block and token
// like the K/V store. The lanes of a stage share one: a micro-step's up lane reads what its down lane wrote, and the
// next evaluation of the same tokens starts only after that.
type SkipStore struct {
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

// NewSkipStore makes an empty one.
func NewSkipStore() *SkipStore {
	return &SkipStore{at: map[skipKey]engine.Tensor{}, kv: map[skipKey]*kvStore{}}
}

func (s *SkipStore) put(k skipKey, t engine.Tensor) {
	s.mu.Lock()
	s.at[k] = t
	s.mu.Unlock()
}

func (s *SkipStore) get(k skipKey) engine.Tensor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[k]
}

// lend shows the store of an up lane to its down lane.
func (s *SkipStore) lend(k skipKey, store *kvStore) {
	s.mu.Lock()
	s.kv[k] = store
	s.mu.Unlock()
}

// lent is what lend has shown, nil: nothing.
func (s *SkipStore) lent(k skipKey) *kvStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kv[k]
}

// len counts what is kept.
func (s *SkipStore) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at) + len(s.kv)
}

// forget drops what a session kept.
func (s *SkipStore) forget(session uint64) {
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
