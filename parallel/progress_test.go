package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"patchbay/fault"
	"patchbay/parallel/request"
)

// TestStepsAreToldOnce checks that every step is reported once and in order, even if every patch has its own sampler,
// and that the last report has the whole prediction.
func TestStepsAreToldOnce(t *testing.T) {
	e := newEngine(t)
	for _, plan := range []string{"", "ulysses=2", "pipe=2,patches=3", "pipe=2,patches=4,warmup=99"} {
		r := flatRequest(t, "flux", 4)
		r.Plan, r.Preview = plan, true
		var steps []int
		var last []float32
		res, err := e.Sample(context.Background(), r, func(p request.Progress) error {
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

// TestObserversErrorsAreKept checks that the error of a run wraps the error with which an observer ended it, and that
// a fault.Error keeps its code.
func TestObserversErrorsAreKept(t *testing.T) {
	e, r := newEngine(t), flatRequest(t, "flux", 2)
	plain, full := errors.New("enough"), &fault.Error{Code: fault.OutOfMemory, Text: "no room"}
	for _, c := range []struct {
		cause error
		code  string
	}{{plain, fault.BadInput}, {full, fault.OutOfMemory}} {
		_, err := e.Sample(context.Background(), r, func(request.Progress) error {
			return fmt.Errorf("observer: %w",
				c.cause)
		})
		var pe *fault.Error
		if !errors.Is(err, c.cause) || !errors.As(err, &pe) || pe.Code != c.code {
			t.Errorf("got %v, want a failure %s that wraps %v", err, c.code, c.cause)
		}
	}
}
