package parallel

import (
	"context"
	"slices"
	"testing"
)

// TestStepsAreToldOnce: every step is told once and in order, however many patches have a sampler of their own: when
// the last of them is done, with the whole prediction of that step.
func TestStepsAreToldOnce(t *testing.T) {
	e := newEngine(t)
	for _, plan := range []string{"", "ulysses=2", "pipe=2,patches=3", "pipe=2,patches=4,warmup=99"} {
		r := flatRequest(t, "flux", 4)
		r.Plan, r.Preview = plan, true
		var steps []int
		var last []float32
		res, err := e.Sample(context.Background(), r, func(p Progress) error {
			steps = append(steps, p.Step)
			last = slices.Clone(p.X0.Data)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(steps, []int{1, 2, 3, 4}) || len(res.Stats.StepSeconds) != 4 {
			t.Errorf("%q: told steps %v with %d times, want 1 to 4 with 4", plan, steps, len(res.Stats.StepSeconds))
		}
		if !slices.Equal(last, res.X0.Data) {
			t.Errorf("%q: the last preview differs from the last prediction by %.3g", plan, relative(last, res.X0.Data))
		}
	}
}
