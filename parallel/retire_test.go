package parallel

import (
	"context"
	"testing"
)

// TestRanksForgetRequests checks that a rank keeps no session of a request that has ended.
func TestRanksForgetRequests(t *testing.T) {
	e := newEngine(t)
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 8, 8, 4)
	r.Plan = "cfg=2,ulysses=2"
	for range 3 {
		if _, err := e.Sample(context.Background(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i, l := range e.whole.team.Members {
		if n, _ := rankOf(l).StoredRows(); n > 0 {
			t.Errorf("rank %d keeps %d sessions after three requests, want none", i, n)
		}
	}
}
