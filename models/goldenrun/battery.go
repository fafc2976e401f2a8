package goldenrun

import (
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

// Rel is the tolerance of tests/golden/README.md section 2 for single forwards in f32.
const Rel = 2e-5

// Open detects and loads a model. meta holds the recorded config.
type Open func(ops engine.Ops, set *weights.Set, meta map[string]string, held dit.Held) (dit.Model, error)

// Of returns an Open for the files of one family.
func Of(f family.Family) Open {
	return func(ops engine.Ops, set *weights.Set, meta map[string]string, held dit.Held) (dit.Model, error) {
		d, err := family.Open([]family.Family{f}, set, meta)
		if err != nil {
			return nil, err
		}
		return d.Load(ops, held)
	}
}

// Family is what the tests of this package need to know about a model family.
type Family struct {
	Models []string // golden models, e.g. "flux-a"
	Open   Open
	// States maps the names of the recorded tensors for block i to the parts of x, the rows [1, L, E] after that block,
	// that must equal them.
	States func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32

	first bool // run only the first case of every model
}

func (f Family) load(t *testing.T, ops engine.Ops, name string, held dit.Held) dit.Model {
	t.Helper()
	set, config, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := f.Open(ops, set, map[string]string{"config": string(config)}, held)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// brief reduces the family to its last model under -short. Forward covers every model; one is enough for the other
// tests.
func (f Family) brief(t *testing.T) Family {
	t.Helper()
	if testing.Short() {
		f.Models = f.Models[len(f.Models)-1:]
		t.Logf("short: only %s", f.Models[0])
	}
	return f
}

// each runs check on every recorded case of every model, or on the first of each.
func (f Family) each(t *testing.T, check func(t *testing.T, name string, c Case)) {
	t.Helper()
	for _, name := range f.Models {
		cases, err := goldenweights.Cases(name)
		if err != nil {
			t.Fatal(err)
		}
		if f.first {
			cases = cases[:1]
		}
		for _, c := range cases {
			t.Run(c.Name, func(t *testing.T) { check(t, name, c) })
		}
	}
}

// some runs check on every recorded case, or under -short only on the last model's first case of two entries, or its
// smallest one.
func (f Family) some(t *testing.T, check func(t *testing.T, name string, c Case)) {
	t.Helper()
	if !testing.Short() {
		f.each(t, check)
		return
	}
	name := f.Models[len(f.Models)-1]
	cases, err := goldenweights.Cases(name)
	if err != nil {
		t.Fatal(err)
	}
	c := slices.MinFunc(cases, func(a, b Case) int { return a.Size() - b.Size() })
	if two := slices.IndexFunc(cases, func(c Case) bool { return c.N() == 2 }); two >= 0 {
		c = cases[two]
	}
	t.Logf("short: only %s", c.Name)
	check(t, name, c)
}

// Forward compares every case and every recorded block state with the golden numbers, on ref, and names the first wrong
// block. Under the race detector, where ref is a hundred times slower and shows nothing new, only the last model runs.
func (f Family) Forward(t *testing.T) {
	if raceDetector {
		f.Models = f.Models[len(f.Models)-1:]
		t.Logf("race detector: only %s", f.Models[0])
	}
	file, err := goldenweights.OpenResults()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	models := map[string]dit.Model{}
	for _, name := range f.Models {
		models[name] = f.load(t, ref.New(), name, dit.Held{})
	}
	f.each(t, func(t *testing.T, name string, c Case) {
		if testing.Short() && c.Size() > 500 {
			t.Skip("NOT RUN with -short: large for ref; the processor's operations run it")
		}
		m, states, checked := models[name], file.States(c), 0
		got := mustWhole(t, ref.New(), m, c, func(i int, x []float32, rows dit.Rows) {
			if len(states) == 0 {
				return
			}
			for part, got := range f.States(m.Spec(), i, x, rows) {
				if _, err := Compare(got, states[part], Rel); err != nil {
					t.Fatalf("first wrong block %s: %v", part, err)
				}
				checked++
			}
		})
		if len(states) > 0 && checked < len(m.Spec().Blocks) {
			t.Fatalf("checked %d block states, want at least %d", checked, len(m.Spec().Blocks))
		}
		f.judge(t, file, c, got, "ref")
	})
}

// On compares every case with the golden numbers on ops, which also packs the weights.
func (f Family) On(t *testing.T, ops engine.Ops) {
	file, err := goldenweights.OpenResults()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	models := map[string]dit.Model{}
	for _, name := range f.Models {
		models[name] = f.load(t, ops, name, dit.Held{})
	}
	f.each(t, func(t *testing.T, name string, c Case) {
		f.judge(t, file, c, mustWhole(t, ops, models[name], c, nil), ops.Name())
	})
}

// Deferred runs every case with calls executed as late as possible and released memory poisoned. The bits differ if
// anything is read too early or too late.
func (f Family) Deferred(t *testing.T) {
	f = f.brief(t)
	models := map[string]dit.Model{}
	for _, name := range f.Models {
		models[name] = f.load(t, NewOps(), name, dit.Held{})
	}
	f.some(t, func(t *testing.T, name string, c Case) {
		want := mustWhole(t, NewOps(), models[name], c, nil)
		late := deferred.New(NewOps())
		env := mustEnv(t, late)
		late.Watch(env.Arena)
		got, err := Whole(env, models[name], c, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Compare(got, want, 0); err != nil {
			t.Fatalf("deferred against direct: %v", err)
		}
	})
}

// Rows splits the rows of every case among 2 and 3 ranks that exchange keys and values, and compares the result with
// that of one rank.
func (f Family) Rows(t *testing.T) {
	f = f.brief(t)
	models := map[string]dit.Model{}
	for _, name := range f.Models {
		models[name] = f.load(t, NewOps(), name, dit.Held{})
	}
	f.some(t, func(t *testing.T, name string, c Case) {
		want := mustWhole(t, NewOps(), models[name], c, nil)
		for _, n := range []int{2, 3} {
			got, err := Parts(models[name], c, n)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Compare(got, want, 2e-6); err != nil {
				t.Fatalf("%d parts against one: %v", n, err)
			}
		}
	})
}

// Half runs the smallest case of every model on ref with bf16 activations and f32 weights and checks that the error is
// no larger than bf16 explains: it rounds to 1/256, so a few dozen roundings stay below 3 % of the largest value.
func (f Family) Half(t *testing.T) {
	f = f.brief(t)
	file, err := goldenweights.OpenResults()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, name := range f.Models {
		cases, err := goldenweights.Cases(name)
		if err != nil {
			t.Fatal(err)
		}
		c := slices.MinFunc(cases, func(a, b Case) int { return a.Size() - b.Size() })
		want, _, err := file.Get(c.Name)
		if err != nil {
			t.Fatal(err)
		}
		env := mustEnv(t, ref.New())
		env.DType = engine.BF16
		got, err := Whole(env, f.load(t, ref.New(), name, dit.Held{}), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		worst, err := Compare(got, want, 3e-2)
		if err != nil {
			t.Fatalf("%s in bf16: %v", c.Name, err)
		}
		t.Logf("%s in bf16: error %.2g, bound %.2g", c.Name, worst, 3e-2)
	}
}

func (f Family) judge(t *testing.T, file goldenweights.Results, c Case, got []float32, where string) {
	t.Helper()
	want, _, err := file.Get(c.Name)
	if err != nil {
		t.Fatal(err)
	}
	worst, err := Compare(got, want, Rel)
	if err != nil {
		t.Fatalf("%s on %s: %v", c.Name, where, err)
	}
	t.Logf("%s on %s: error %.2g, bound %.2g", c.Name, where, worst, Rel)
}

func mustEnv(t *testing.T, ops engine.Ops) dit.Env {
	t.Helper()
	env, err := NewEnv(ops, nil)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func mustWhole(t *testing.T, ops engine.Ops, m dit.Model, c Case, seen Seen) []float32 {
	t.Helper()
	got, err := Whole(mustEnv(t, ops), m, c, seen)
	if err != nil {
		t.Fatal(err)
	}
	return got
}
