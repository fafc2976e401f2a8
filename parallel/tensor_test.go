package parallel

import (
	"context"
	"fmt"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// watched is a Model that notes how full the arena is when a block starts: what is kept between blocks.
type watched struct {
	dit.Model
	between int
}

func (w *watched) Block(env dit.Env, i int, s *dit.State, skip engine.Tensor) {
	w.between = max(w.between, env.Arena.Mark())
	w.Model.Block(env, i, s, skip)
}

// between is what a rank keeps in its arenas between blocks of one evaluation, and the peak inside blocks, in bytes: a recording pass at a timestep whose
// modulations are ready.
func between(t *testing.T, r *Request, p plan.Plan, rank int) (kept, peak int) {
	t.Helper()
	model, err := r.Model.Load(engine.NewRecorder(), p.Held(nil, plan.Coord{Tensor: rank}))
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	w := &watched{Model: model}
	var comms [plan.AxisCount]comm.Comm
	for a := range comms {
		comms[a] = comm.NewSilent(0, 1)
	}
	comms[plan.AxisTensor] = comm.NewSilent(rank, p.Tensor)
	e := r.Branches[0].Entries[0].Entry
	grid := r.Model.Spec.Tokens(r.Latent.Y, r.Latent.X)
	s := &rankSession{
		model: w, comms: comms, skips: newSkipStore(),
		open: OpenCommand{Plan: p, Batch: r.Latent.B, Text: e.Context.Rows, Entries: []EntryInput{{Entry: e, Grid: grid}}, Timesteps: []float32{0.5}},
		env:  dit.Env{Ops: engine.NewRecorder(), Arena: engine.NewMeasuringArena("session")},
		act:  engine.NewMeasuringArena("activations"), comm: engine.NewMeasuringArena("communication"),
	}
	if err := s.prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.evaluate(s.env.Ops, EvaluateCommand{Timestep: 0.5, Whole: true, Entries: []int{0}, Inputs: [][]float32{nil}}); err != nil {
		t.Fatal(err)
	}
	return w.between, s.act.Peak() + s.comm.Peak()
}

// TestScatteredFormKeepsAPart: in the scattered form the arena holds 1/P between blocks of what it holds in the all-reduce form (rounded up to whole
// tokens), and the peak inside blocks is lower too.
func TestScatteredFormKeepsAPart(t *testing.T) {
	for _, f := range families() {
		r := tinyRequest(t, f.name, 2, 2*f.y, 2*f.x, 1)
		if f.name == "pixart" { // its positions know no smaller picture, and it is large enough
			r = tinyRequest(t, f.name, 2, f.y, f.x, 1)
		}
		for _, n := range []int{2, 3, 4} {
			reduce, scatter := plan.OneRank(), plan.OneRank()
			reduce.Tensor, scatter.Tensor, scatter.Scatter = n, n, true
			for rank := range n {
				whole, before := between(t, r, reduce, rank)
				part, peak := between(t, r, scatter, rank)
				spec := r.Model.Spec
				token := r.Latent.B * 4 * (spec.Width + spec.Channels*spec.PatchSize*spec.PatchSize) // X and the latent's row
				if bound := whole/n + 2*token + 2*64; part > bound {
					t.Errorf("%s, rank %d of %d: %d bytes between blocks, all-reduce form %d: want at most 1/%d and two tokens, %d", f.name, rank, n, part, whole, n, bound)
				}
				if peak > before {
					t.Errorf("%s, rank %d of %d: peak %d bytes, all-reduce form %d: want no more", f.name, rank, n, peak, before)
				}
				t.Logf("%s, rank %d of %d: between blocks %d of %d bytes (%.3f), peak %d of %d (%.3f)", f.name, rank, n, part, whole,
					float64(part)/float64(whole), peak, before, float64(peak)/float64(before))
			}
		}
	}
}

// TestScatteredFormOnFewRows: ranks without rows of their own take part in every exchange. Twelve tokens on five sequence places and two tensor ranks leave
// places with two or three image tokens, and text of five tokens in the smaller entry; with three tensor ranks some keep none.
func TestScatteredFormOnFewRows(t *testing.T) {
	e := newEngine(t)
	for _, f := range []string{"flux", "sd3", "hunyuandit"} {
		r := tinyRequest(t, f, 1, 6, 8, 2)
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, plan := range []string{"ulysses=5,tensor=2,form=scatter", "ring=3,tensor=4,form=scatter", "ulysses=6,tensor=3,form=scatter"} {
			t.Run(fmt.Sprintf("%s/%s", f, plan), func(t *testing.T) {
				r := *r
				r.Plan = plan
				got, err := e.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-5 {
					t.Errorf("relative difference to one rank %.3g, bound 1e-5", rel)
				}
			})
		}
	}
}
