package comm_test

import (
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/comm"
)

// TestReduceScatterComparesCounts checks that ranks whose counts differ are refused, though each part fits its tensors.
func TestReduceScatterComparesCounts(t *testing.T) {
	call := func(counts ...int) *comm.Call {
		return comm.NewReduceScatter(engine.FromF32(make([]float32, 4), 4), engine.FromF32(make([]float32, 4), 4), counts)
	}
	if err := comm.Check("test", []*comm.Call{call(3, 1), call(3, 1)}); err != nil {
		t.Errorf("equal counts: %v", err)
	}
	err := comm.Check("test", []*comm.Call{call(3, 1), call(1, 3)})
	if err == nil || !strings.Contains(err.Error(), "ranks 0 and 1 disagree in counts") {
		t.Errorf("counts 3, 1 and 1, 3: got %v, want that ranks 0 and 1 disagree in counts", err)
	}
}
