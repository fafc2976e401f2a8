package parallel

import (
	"context"
	"time"

	"patchbay/parallel/plan"
)

// Loaded says what Load did.
type Loaded struct {
	Bytes   int64   // of the weights in the file, all parts together
	Seconds float64 // 0 if they were resident
}

// Load makes the weights of a model resident in the layout that a plan wants ("": one rank), so that the first request
// of that plan need not. It waits for the work in hand. Errors are *Error, as those of Sample.
func (e *Engine) Load(ctx context.Context, m Model, text string) (Loaded, error) {
	out := Loaded{Bytes: m.WeightBytes}
	p, err := e.parse(text)
	if err != nil {
		return out, err
	}
	if p.Tensor > m.Spec.Groups() {
		return out, plan.Refuse("tensor", "is %d, the model has %d heads", p.Tensor, m.Spec.Groups())
	}
	if n := plan.MaxStages(m.Spec); p.Owns() && p.Pipe > n {
		return out, plan.Refuse("pipe", "is %d, the blocks of %s make at most %d stages", p.Pipe, m.Spec.Family, n)
	}
	release, err := e.alone(ctx)
	if err != nil {
		return out, err
	}
	defer release()
	if err := e.usable(); err != nil {
		return out, err
	}
	if err := e.start(p.Ranks()); err != nil {
		return out, err
	}
	if n := e.places(); n > 0 && p.Ranks() > n {
		return out, plan.Refuse("ranks", "are %d, the hosts that answer have places for %d", p.Ranks(), n)
	}
	start := time.Now()
	loaded, err := e.acquire(m, p)
	if err != nil {
		return out, err
	}
	if loaded {
		out.Seconds = time.Since(start).Seconds()
	}
	return out, nil
}
