package parallel

import (
	"context"
	"fmt"
	"testing"

	"patchbay/models/dit"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// alikeRequest is tinyRequest with two entries in each branch, all of the same shapes but with different values.
func alikeRequest(t *testing.T, family string, y, x int) *request.Request {
	t.Helper()
	r := tinyRequest(t, family, 2, y, x, 3)
	first := r.Branches[0].Entries[0]
	for i := range r.Branches {
		r.Branches[i].Entries = nil
		for k := range 2 {
			e, tag := first, fmt.Sprint("alike", i, k)
			e.Strength = float32(1 + k)
			array := func(like dit.Array, tag string) dit.Array {
				return dit.Array{Rows: like.Rows, Cols: like.Cols, Data: golden.Input(tag, len(like.Data))}
			}
			e.Context, e.Context2 = array(first.Context, tag), array(first.Context2, tag+"2")
			if first.Pooled != nil {
				e.Pooled = golden.Input(tag+"pooled", len(first.Pooled))
			}
			if i == 1 && k == 0 {
				e.ContextLen = 5
			}
			r.Branches[i].Entries = append(r.Branches[i].Entries, e)
		}
	}
	return r
}

// TestEntriesTogether checks that entries of equal shapes evaluated as one batch give the pictures of entries
// evaluated one after the other, with the bytes, calls and memory of the formulas, even if only half are evaluated.
func TestEntriesTogether(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	m.Device.BatchRows = 4096
	apart := newEngine(t)
	together, err := NewPool(Config{NewOps: testOps, Recode: roundTrip, Machine: &m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(together.Close)
	plans := []string{
		"", "cfg=2", "data=2,ulysses=2", "ring=2,tensor=2", "pipe=2,patches=3", "cfg=2,pipe=2,patches=2,sync=spread",
		"tensor=2,form=scatter,ulysses=2", "pipe=2,patches=2,shard=on",
	}
	for n, f := range families(t) {
		r := alikeRequest(t, f.name, f.y, f.x)
		for i, text := range everyNth(plans, n, 6) {
			t.Run(fmt.Sprintf("%s/%s", f.name, text), func(t *testing.T) {
				r := *r
				r.Plan = text
				if (n+i)%2 == 1 { // the negative branch is not evaluated
					r.Guider.CFG = 1
				}
				want, err := apart.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				together.dismiss()
				got, err := together.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= 1e-5) {
					t.Errorf("relative difference to one entry after the other %.3g, bound 1e-5", rel)
				}
				w, p := r.Workload(), planOf(t, text)
				w.Device = m.Device
				if n, each := w.Together(p), 4/p.CFG; n != each {
					t.Fatalf("%d entries are one batch, want %d", n, each)
				}
				checkMemory(t, w, p, 4, together.whole.team, got.Stats.PeakBytes)
				if r.Guider.CFG > 1 { // forecasts assume that all entries are evaluated
					checkTraffic(t, w, p, 4, got.Stats.Traffic)
				}
			})
		}
	}
}

// TestEntriesApart checks that entries that differ, or have too many rows, are evaluated one after the other.
func TestEntriesApart(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	whole := request.Area{H: 4, W: 4}
	for name, change := range map[string]func(r *request.Request, p *plan.Plan){
		"other text": func(r *request.Request, _ *plan.Plan) { r.Branches[0].Entries[1].Context.Rows-- },
		"area":       func(r *request.Request, _ *plan.Plan) { r.Branches[0].Entries[1].Area = whole },
		"times":      func(r *request.Request, _ *plan.Plan) { r.Branches[0].Entries[1].Ranged = true },
		"guidance":   func(r *request.Request, _ *plan.Plan) { r.Branches[0].Entries[1].Guidance = new(float32) },
		"biases":     func(r *request.Request, _ *plan.Plan) { r.Branches[0].Entries[1].Biases = make([]dit.Bias, 1) },
		"residuals": func(r *request.Request,
			_ *plan.Plan,
		) {
			r.Branches[0].Entries[1].Residuals = make([]rank.Residual, 1)
		},
		"rows":          func(r *request.Request, _ *plan.Plan) { r.Latent.Y *= 32 },
		"the same bits": func(_ *request.Request, p *plan.Plan) { p.Deterministic = true },
		"uneven groups": func(r *request.Request, p *plan.Plan) {
			p.CFG, r.Branches[1].Entries = 2,
				r.Branches[1].Entries[:1]
		},
		"a single entry": func(r *request.Request, _ *plan.Plan) {
			r.Branches = r.Branches[:1]
			r.Branches[0].Entries = r.Branches[0].Entries[:1]
		},
	} {
		r, p := alikeRequest(t, "sd3", 11, 8), plan.OneRank()
		of := func() int {
			w := r.Workload()
			w.Device.BatchRows = 300
			return w.Together(p)
		}
		if n := of(); n != 4 {
			t.Fatalf("%d entries are one batch, want 4", n)
		}
		if change(r, &p); of() != 1 {
			t.Errorf("%s: %d entries are one batch, want them apart", name, of())
		}
	}
}
