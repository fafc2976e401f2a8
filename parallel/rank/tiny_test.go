package rank

import (
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/tiny"
	"patchbay/parallel/plan"
	"patchbay/tests/golden"
)

// picture is the input of a test session: the tiny model of a family, a latent of y x x, and an entry of 13 text
// tokens.
type picture struct {
	family string
	y, x   int
	spec   dit.Spec
	load   func(ops engine.Ops, held dit.Held) (dit.Model, error)
	entry  EntryInput
}

// pictures returns one picture of every family, with odd sides.
func pictures(t *testing.T) []picture {
	t.Helper()
	list := []picture{
		{family: "flux", y: 9, x: 14},
		{family: "sd3", y: 11, x: 8},
		{family: "pixart", y: 34, x: 36},
		{family: "hunyuandit", y: 10, x: 14},
	}
	for i := range list {
		p := &list[i]
		d, err := tiny.Describe(p.family)
		if err != nil {
			t.Fatal(err)
		}
		p.spec, p.load = d.Spec, func(ops engine.Ops, held dit.Held) (dit.Model, error) { return d.Load(ops, held) }
		tokens := 13
		p.entry.Entries = make([]dit.Entry, 1)
		e := &p.entry.Entries[0]
		if p.spec.Context2Dim > 0 {
			e.Context2 = dit.Array{Rows: 256, Cols: p.spec.Context2Dim, Data: golden.Input("a2", 256*p.spec.Context2Dim)}
			tokens = 77
		}
		e.Context = dit.Array{Rows: tokens, Cols: p.spec.ContextDim, Data: golden.Input("a", tokens*p.spec.ContextDim)}
		if p.spec.PooledDim > 0 {
			e.Pooled = golden.Input("apooled", p.spec.PooledDim)
		}
		p.resize(p.y, p.x)
	}
	return list
}

// resize sets the sides of the latent.
func (p *picture) resize(y, x int) { p.y, p.x, p.entry.Grid = y, x, p.spec.Tokens(y, x) }

// opsOf returns the Ops of a rank that computes alone.
func opsOf(t *testing.T) engine.Ops {
	t.Helper()
	ops, err := testOps(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

func planOf(t *testing.T, text string) plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
