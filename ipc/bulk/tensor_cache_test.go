package bulk

import (
	"testing"

	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
)

// TestTensorCacheKeepsItsBudget: what was not used for longest goes first, and the sum of what is held stays below the
// budget.
func TestTensorCacheKeepsItsBudget(t *testing.T) {
	cache := NewTensorCache(1000)
	for i := range 20 {
		v := &wire.Tensor{DType: "f32", Shape: []int{50}, Data: wiretest.Noise(200 + i)[i:]}
		v.Name()
		cache.put(v.Hash, v.Data)
		if cache.used > 1000 || cache.order.Len() != len(cache.held) {
			t.Fatalf("%d bytes in %d tensors, the budget is 1000", cache.used, len(cache.held))
		}
	}
	if len(cache.held) != 5 {
		t.Errorf("%d tensors of 200 bytes fit 1000", len(cache.held))
	}
}
