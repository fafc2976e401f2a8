package process

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/plan"
)

// counted is an Ops that counts how many of its kind are open.
type counted struct {
	engine.Ops
	open *int
}

func (c counted) Close() error {
	*c.open--
	return nil
}

// TestJoinThatFailsLeavesNoRanks checks that if the device of a later rank does not start, no earlier rank keeps
// running and all Ops are closed.
func TestJoinThatFailsLeavesNoRanks(t *testing.T) {
	open, broken := 0, errors.New("no such device")
	h, err := New(Config{
		DeviceOf: func(rank int) string { return fmt.Sprintf("device %d", rank) },
		NewOps: func(rank, ranks int) (engine.Ops, error) {
			if rank == 1 && ranks == 1 { // the Ops for loading weights, not the rank's own
				return nil, broken
			}
			open++
			return counted{engine.NewRecorder(), &open}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	before := open
	p := plan.OneRank()
	p.Ulysses = 2
	_, err = h.Join(TeamSpec{Plan: p, Local: []int{0, 1}})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("got %v, want an error that names rank 1 and says %v", err, broken)
	}
	if open != before {
		t.Errorf("%d Ops are open, want those of the host alone, %d", open, before)
	}
}
