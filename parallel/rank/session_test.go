package rank

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/tiny"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

// TestForeignBlocksPanic checks that computing with the weights of another stage, which a rank does not hold, panics.
func TestForeignBlocksPanic(t *testing.T) {
	for _, f := range pictures(t) {
		ops, p := opsOf(t), planOf(t, "pipe=3,shard=on")
		costs := slices.Repeat([]float64{1}, len(f.spec.Blocks))
		lanes := plan.Cut(&f.spec, costs, [2]float64{}, p.StageSpeeds())
		m, err := f.load(ops, p.Held(lanes, plan.Coord{Pipe: 1}))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		s := &session{network: network{
			model: m, comms: lonely(), lanes: NewLaneStore(),
			open: OpenCommand{Plan: plan.OneRank(), Batch: 1, Entries: []EntryInput{f.entry}},
			memory: memory{
				env: dit.Env{Ops: ops, Arena: arenaOf(t, ops, 64<<20)}, act: arenaOf(t, ops, 64<<20),
				comm: arenaOf(t, ops, 64<<20),
			},
		}}
		if err := s.prepare(); err != nil {
			t.Fatalf("%s: a stage prepares what it holds: %v", f.family, err)
		}
		env, c := s.env, EvaluateCommand{Timestep: 0.5, Whole: true, Entries: []int{0}}
		held := p.StageHeld(lanes, 1).Blocks
		for b := range f.spec.Blocks {
			run := s.begin(env, 0, &c)
			err := scope.Recovered("a block", func() error { s.block(env, run, b); return nil })
			var refusal *fault.Error
			foreign := !slices.ContainsFunc(held, func(r dit.Range) bool { return r.Start <= b && b < r.End })
			if foreign && (!errors.As(err, &refusal) || refusal.Code != fault.Panic) {
				t.Errorf("%s: block %d of another stage was computed: got %v, want a panic", f.family, b, err)
			}
		}
		if err := scope.Recovered("head", func() error {
			s.head(env, []*entryRun{s.begin(env, 0, &c)})
			return nil
		}); err == nil {
			t.Errorf("%s: the head of another stage was computed", f.family)
		}
	}
}

// TestPrefacesStop checks that a cancelled session begins no other block of a preface, and says where it is.
func TestPrefacesStop(t *testing.T) {
	ops := opsOf(t)
	d, err := tiny.Describe("qwenimage21")
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Load(ops, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	asked, spec := 0, &d.Spec
	entry := dit.Entry{Context: dit.Array{Rows: 3, Cols: spec.ContextDim, Data: make([]float32, 3*spec.ContextDim)}}
	s := &session{network: network{
		model: m, comms: lonely(), lanes: NewLaneStore(), pos: newPosition(ops),
		stop: func() bool { asked++; return asked == 3 },
		open: OpenCommand{
			Plan: plan.OneRank(), Batch: 1, Entries: []EntryInput{{Entries: []dit.Entry{entry}, Grid: spec.Tokens(2, 2)}},
		},
		memory: memory{
			env: dit.Env{Ops: ops, Arena: arenaOf(t, ops, 64<<20)}, act: arenaOf(t, ops, 64<<20),
			comm: arenaOf(t, ops, 64<<20),
		},
	}}
	if err := s.prepare(); !errors.Is(err, errStopped) || asked != 3 || s.pos.doing != "preface in block 2" {
		t.Errorf("got %v after %d questions at %q, want to stop before block 2", err, asked, s.pos.doing)
	}
}

// TestForeignPartsArePrivate checks that using a sharded unit that was not gathered panics with an error that says so.
func TestForeignPartsArePrivate(t *testing.T) {
	for _, f := range pictures(t) {
		ops := opsOf(t)
		m, err := f.load(ops, dit.Held{Part: 1, Parts: 3})
		if err != nil {
			t.Fatal(err)
		}
		s := &session{network: network{
			model: m, comms: lonely(), lanes: NewLaneStore(),
			open:   OpenCommand{Plan: plan.OneRank(), Batch: 1, Entries: []EntryInput{f.entry}},
			memory: memory{env: dit.Env{Ops: ops, Arena: arenaOf(t, ops, 64<<20)}},
		}}
		err = scope.Recovered("a rank without gathers", s.prepare)
		var e *fault.Error
		if !errors.As(err, &e) || e.Code != fault.Panic ||
			!strings.Contains(e.Error(), "in parts") && !strings.Contains(e.Error(), "lie in host memory") {
			t.Errorf("%s: weights that were not gathered were used: got %v, want a panic that says so", f.family, err)
		}
		m.Close()
	}
}

// lonely returns the ends of a rank without peers.
func lonely() (out [plan.AxisCount]comm.Comm) {
	for a := range out {
		out[a] = comm.NewSilent(0, 1)
	}
	return out
}

func arenaOf(t *testing.T, ops engine.Ops, bytes int) *engine.Arena {
	t.Helper()
	mem, err := ops.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ops.Free(mem) })
	return engine.NewArena("test", mem, bytes)
}

// watched is a Model that records the peak use of the arena at the start of a block: what is kept between blocks.
type watched struct {
	dit.Model
	between int
}

func (w *watched) Block(env dit.Env, i int, s *dit.State, skip engine.Tensor) {
	w.between = max(w.between, env.Arena.Mark())
	w.Model.Block(env, i, s, skip)
}

// between returns the bytes that a rank keeps in its arena between blocks of one evaluation, and its peak inside
// blocks, from a recording pass at a timestep whose modulations are ready.
func between(t *testing.T, f picture, batch int, p plan.Plan, rank int) (resident, peak int) {
	t.Helper()
	model, err := f.load(engine.NewRecorder(), p.Held(nil, plan.Coord{Tensor: rank}))
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
	s := &session{network: network{
		model: w, comms: comms, lanes: NewLaneStore(),
		open: OpenCommand{
			Plan: p, Batch: batch, Text: f.entry.Entries[0].Context.Rows, Entries: []EntryInput{f.entry},
			Timesteps: []float32{0.5},
		},
		memory: memory{
			env: dit.Env{Ops: engine.NewRecorder(), Arena: engine.NewMeasuringArena("session")},
			act: engine.NewMeasuringArena("activations"), comm: engine.NewMeasuringArena("communication"),
		},
	}}
	if err := s.prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.evaluate(s.env.Ops, EvaluateCommand{
		Timestep: 0.5, Whole: true, Entries: []int{0},
		Inputs: []dit.Floats{nil},
	}); err != nil {
		t.Fatal(err)
	}
	return w.between, s.act.Peak() + s.comm.Peak()
}

// TestScatteredFormKeepsAPart checks that in the scattered form the arena holds between blocks 1/P of what it holds in
// the all-reduce form (rounded up to whole tokens), and that the peak inside blocks is no higher.
func TestScatteredFormKeepsAPart(t *testing.T) {
	const batch = 2
	for _, f := range pictures(t) {
		if f.family != "pixart" { // PixArt is large enough: its positions allow no smaller one
			f.resize(2*f.y, 2*f.x)
		}
		for _, n := range []int{2, 3, 4} {
			reduce, scatter := plan.OneRank(), plan.OneRank()
			reduce.Tensor, scatter.Tensor, scatter.Scatter = n, n, true
			for rank := range n {
				whole, before := between(t, f, batch, reduce, rank)
				part, peak := between(t, f, batch, scatter, rank)
				spec := f.spec
				token := batch * 4 * (spec.Width + spec.Channels*spec.PatchSize*spec.PatchSize) // X and the latent's row
				if bound := whole/n + 2*token + 2*64; part > bound {
					t.Errorf("%s, rank %d of %d: %d bytes between blocks, all-reduce form %d: want at most 1/%d and two tokens, %d",
						f.family, rank, n, part, whole, n, bound)
				}
				if peak > before {
					t.Errorf("%s, rank %d of %d: peak %d bytes, all-reduce form %d: want no more", f.family, rank, n, peak, before)
				}
				t.Logf("%s, rank %d of %d: between blocks %d of %d bytes (%.3f), peak %d of %d (%.3f)", f.family,
					rank, n, part, whole,
					float64(part)/float64(whole), peak, before, float64(peak)/float64(before))
			}
		}
	}
}

// TestLateCancellationLeavesNothing checks that a cancellation that arrives after its session was retired is
// forgotten, and does not affect the next session, which may be canceled before it opens.
func TestLateCancellationLeavesNothing(t *testing.T) {
	r := New(0, opsOf(t), lonely(), NewLaneStore(), nil, nil, nil)
	defer CloseOps(r.Ops)
	r.retire(3)
	r.cancel(3)
	if r.Stopped(4) {
		t.Error("session 4 is stopped, want session 3 alone")
	}
	r.cancel(4)
	r.cancel(3)
	if !r.Stopped(4) || r.Stopped(5) {
		t.Errorf("sessions 4 and 5 are stopped: %v and %v, want 4 alone", r.Stopped(4), r.Stopped(5))
	}
}
