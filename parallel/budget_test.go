package parallel

import (
	"context"
	"errors"
	"testing"

	"patchbay/fault"
	"patchbay/parallel/request"
)

// TestBudgetCountsAllMemoryOfASession checks that a request runs in as many bytes as its busiest rank takes, session,
// activations and exchange together, and is refused in one less. The last case is a folded pipeline, whose devices
// have two lanes.
func TestBudgetCountsAllMemoryOfASession(t *testing.T) {
	for _, c := range [][2]string{
		{"flux", ""}, {"flux", "ulysses=2"}, {"flux", "pipe=2,patches=2"}, {"hunyuandit", "pipe=2,patches=2"},
	} {
		plan := c[0] + " " + c[1]
		r := flatRequest(t, c[0], 2)
		r.Plan = c[1]
		run := func(room int64) (*request.Result, error) {
			e, err := NewPool(Config{NewOps: testOps, MemoryBytes: room})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			return e.Sample(context.Background(), r, nil)
		}
		free, err := run(0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(free.Stats.PeakBytes); err != nil {
			t.Errorf("%q in exactly the memory it takes: %v", plan, err)
		}
		var pe *fault.Error
		if _, err := run(free.Stats.PeakBytes - 1); !errors.As(err, &pe) || pe.Code != fault.OutOfMemory {
			t.Errorf("%q in a byte less than it takes: got %v, want out_of_memory", plan, err)
		}
	}
}
