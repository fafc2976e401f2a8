package parallel

import (
	"context"
	"sync/atomic"
	"testing"

	"patchbay/engine"
)

// copyCounter counts the values of heads ([B, L, H, D] views) copied outside the transport: by Copy, and by QKNormRoPE
// into other memory.
type copyCounter struct {
	engine.Ops
	plain, packed *atomic.Int64
}

func (c copyCounter) Copy(dst, src engine.Tensor) {
	if dst.Dims() == 4 {
		c.plain.Add(int64(dst.Len()))
	}
	c.Ops.Copy(dst, src)
}

func (c copyCounter) QKNormRoPE(dq, dk, dv, q, k, v engine.Tensor, n engine.QKNorm, r engine.RoPE) {
	for _, t := range [][2]engine.Tensor{{dq, q}, {dk, k}, {dv, v}} {
		if !t[0].IsZero() && !t[1].IsZero() && !engine.Overlaps(t[0], t[1]) {
			c.packed.Add(int64(t[0].Len()))
		}
	}
	c.Ops.QKNormRoPE(dq, dk, dv, q, k, v, n, r)
}

// TestExchangesCopyOnce checks that outside the transport an exchange copies what it moves only once. Ulysses writes
// Q, K and V once, in the pass that normalizes and rotates them anyway, and O once. A ring copies K and V once into
// the buffer that circulates. A pipeline writes K and V once, where attention reads them.
func TestExchangesCopyOnce(t *testing.T) {
	for _, c := range []struct {
		plan          string
		plain, packed int64 // in units of the values of one of Q, K, V, O over all ranks
	}{
		{"", 0, 0},
		{"ulysses=2", 1, 3},
		{"ulysses=5", 1, 3},
		{"ring=3", 2, 0},
		{"ring=2,ulysses=3", 3, 3},
		{"gather=3", 2, 0},
		{"gather=2,ulysses=3", 3, 3},
		{"pipe=2,patches=1,warmup=99", 0, 2},
	} {
		var plain, packed atomic.Int64
		e, err := NewPool(Config{NewOps: func(rank, ranks int) (engine.Ops, error) {
			ops, err := testOps(rank, ranks)
			return copyCounter{ops, &plain, &packed}, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		r := tinyRequest(t, "flux", 1, 12, 10, 2)
		for _, b := range r.Branches {
			for i := range b.Entries {
				b.Entries[i].References = nil
			}
		}
		r.Plan = c.plan
		res, err := e.Sample(context.Background(), r, nil)
		e.Close()
		if err != nil {
			t.Fatalf("%s: %v", c.plan, err)
		}
		// values of Q in all attentions of the run, and text rows, which every evaluation copies to its state
		unit, text := int64(0), int64(0)
		for _, b := range r.Branches {
			for _, entry := range b.Entries {
				unit += int64(entry.Context.Rows + 30)
				text += int64(entry.Context.Rows * r.Model.Spec.Width * res.Stats.Evaluations)
			}
		}
		unit *= int64(r.Model.Spec.Width * len(r.Model.Spec.Blocks) * res.Stats.Evaluations)
		if got, want := plain.Load()-text, c.plain*unit; got != want {
			t.Errorf("plan %q: %d values copied, want %d x %d", c.plan, got, c.plain, unit)
		}
		if got, want := packed.Load(), c.packed*unit; got != want {
			t.Errorf("plan %q: %d values packed, want %d x %d", c.plan, got, c.packed, unit)
		}
	}
}
