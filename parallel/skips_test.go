package parallel

import (
	"context"
	"testing"
)

// TestSkipsAreForgotten checks that what ranks keep for later blocks (skip outputs, stores lent to a down lane) is
// released at the end of the request.
func TestSkipsAreForgotten(t *testing.T) {
	e := newEngine(t)
	r := flatRequest(t, "hunyuandit", 2)
	for _, plan := range []string{"", "ulysses=2", "pipe=2,patches=2", "pipe=2,patches=2,sync=spread"} {
		r.Plan = plan
		for job := range 2 {
			if _, err := e.Sample(context.Background(), r, nil); err != nil {
				t.Fatalf("%q: %v", plan, err)
			}
			for i, l := range e.whole.team.Members {
				if _, n := rankOf(l).StoredRows(); n > 0 {
					t.Errorf("plan %q: rank %d keeps %d outputs and stores after job %d, want none", plan, i, n, job)
				}
			}
		}
	}
}
