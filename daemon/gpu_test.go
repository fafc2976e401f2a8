package daemon

import (
	"slices"
	"testing"
)

// TestGPUs: numbers, lists and ranges are read, everything else is refused, and what is no GPU is left to others.
func TestGPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"cuda:0": {0}, "cuda:3": {3}, "cuda:0-3": {0, 1, 2, 3}, "cuda:0,2": {0, 2},
		"cuda:0,cuda:2-3": {0, 2, 3}, "cuda:2-2": {2}, "cuda:0,0": {0, 0}, "cuda:0-2,1": {0, 1, 2, 1},
		"cpu": nil, "": nil, "rates.json": nil,
	} {
		if got, err := GPUs(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1-0", "cuda:0,", "cuda0", "cuda:0-",
		"cuda:999", "cuda:+1",
	} {
		if got, err := GPUs(text); err == nil {
			t.Errorf("%q: got %v, want a refusal", text, got)
		}
	}
}
