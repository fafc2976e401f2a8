package bulk

import (
	"testing"

	"patchbay/array"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
)

// TestTensorCacheKeepsItsBudget checks that the least recently used tensors go first and that the sum of those held
// stays below the budget.
func TestTensorCacheKeepsItsBudget(t *testing.T) {
	cache := NewTensorCache(1000)
	var hashes []string
	for i := range 20 {
		v := &wire.Tensor{Tensor: array.Tensor{DType: "f32", Shape: []int{50}, Data: wiretest.Noise(200 + i)[i:]}}
		v.Hash = v.Sum()
		cache.put(v.Hash, v.Data)
		hashes = append(hashes, v.Hash)
	}
	for i, hash := range hashes {
		if _, held := cache.held.Get(hash); held != (i >= 15) {
			t.Errorf("tensor %d of 20 is held: %v; five of 200 bytes fit 1000", i, held)
		}
	}
	cache.put("large", make([]byte, 1001))
	if _, held := cache.held.Get("large"); held {
		t.Error("a tensor over the budget is held")
	}
}
