package goldenrun

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/weights/goldenweights"
)

// Stages loads the middle blocks of each model into one value and the others into a second, as a folded pipeline holds
// them. It runs every block where it is held and checks that the bits are those of the whole model.
func (f Family) Stages(t *testing.T) {
	f = f.brief(t)
	for _, name := range f.Models {
		t.Run(name, func(t *testing.T) {
			cases, err := goldenweights.Cases(name)
			if err != nil {
				t.Fatal(err)
			}
			whole := f.load(t, NewOps(), name, dit.Held{})
			spec := whole.Spec()
			n := len(spec.Blocks)
			lo := max(n/3, 1)
			hi := max(n-1, lo+1)
			outer := f.load(t, NewOps(), name, dit.Held{Blocks: []dit.Range{{Start: 0, End: lo}, {Start: hi, End: n}}})
			inner := f.load(t, NewOps(), name, dit.Held{Blocks: []dit.Range{{Start: lo, End: hi}}})
			want := mustWhole(t, NewOps(), whole, cases[0], nil)
			got := staged(t, cases[0], spec, outer, inner, dit.Range{Start: lo, End: hi})
			if _, err := Compare(got, want, 0); err != nil {
				t.Fatalf("blocks held in two places against one: %v", err)
			}
		})
	}
}

// staged evaluates c with the blocks of mid from inner and the others from outer.
func staged(t *testing.T, c Case, spec *dit.Spec, outer, inner dit.Model, mid dit.Range) []float32 {
	t.Helper()
	env := mustEnv(t, NewOps())
	grid := c.Grid(spec)
	p, err := outer.Prepare(env, c.Entries(), grid)
	if err != nil {
		t.Fatal(err)
	}
	second, err := inner.Prepare(env, c.Entries(), grid)
	if err != nil {
		t.Fatal(err)
	}
	second.Text = p.Text // which a preface moves through the blocks in order
	for i := range spec.Blocks {
		at, m := p, outer
		if mid.Has(i) {
			at, m = second, inner
		}
		if m.PrepareBlock(env, at, i); at.CrossKV != nil {
			p.CrossKV[i] = at.CrossKV[i]
		}
	}
	rows := dit.Rows{Image: dit.Range{Start: 0, End: spec.Split(grid)}}
	if spec.JointText() {
		rows.Text = dit.Range{Start: 0, End: p.Lt}
	}
	out := evaluate(env, func(i int) dit.Model {
		if i >= mid.Start && i < mid.End {
			return inner
		}
		return outer
	}, p, c, rows, nil)
	return latents(c, spec, grid, out)
}

// Slices loads each model as 2 and 3 tensor-parallel slices, sums their partial results and compares with whole
// weights. Heads that do not divide evenly are shared unevenly. Groups larger than the number of heads are left out.
func (f Family) Slices(t *testing.T) {
	f = f.brief(t)
	for _, name := range f.Models {
		t.Run(name, func(t *testing.T) {
			cases, err := goldenweights.Cases(name)
			if err != nil {
				t.Fatal(err)
			}
			whole := f.load(t, NewOps(), name, dit.Held{})
			for _, c := range cases[:min(2, len(cases))] {
				want := mustWhole(t, NewOps(), whole, c, nil)
				for n := 2; n <= min(3, whole.Spec().Heads); n++ {
					for r, got := range f.sliced(t, name, c, n) {
						if _, err := Compare(got, want, Rel); err != nil {
							t.Fatalf("%s: rank %d of %d slices against whole weights: %v", c.Name, r, n, err)
						}
					}
				}
			}
		})
	}
}

// sliced evaluates c on n ranks that each hold a slice and returns the result of every rank.
func (f Family) sliced(t *testing.T, name string, c Case, n int) [][]float32 {
	t.Helper()
	models := make([]dit.Model, n)
	for r := range n {
		models[r] = f.load(t, NewOps(), name, dit.Held{Rank: r, Ranks: n})
	}
	meet := newMeeting(n)
	out, errs := make([][]float32, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					errs[r] = fmt.Errorf("rank %d: %v", r, v)
					meet.abort()
				}
			}()
			ops := NewOps()
			env, err := NewEnv(ops, nil)
			if err != nil {
				errs[r] = err
				meet.abort()
				return
			}
			env.Reduce = func(t engine.Tensor) { reduce(env, meet, r, t) }
			env.Sum = func(t engine.Tensor) { sum(meet, r, t) }
			out[r], errs[r] = Whole(env, models[r], c, nil)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// reduce replaces t by its sum over all ranks, added in rank order so that all ranks get the same bits.
func reduce(env dit.Env, meet *meeting, r int, t engine.Tensor) {
	mark := env.Arena.Mark()
	sum := env.Arena.Alloc(env.DType, t.Shape()...)
	all := meet.gather(r, shown{k: t})
	env.Ops.Copy(sum, all[0].k)
	for _, s := range all[1:] {
		env.Ops.Add(sum, sum, s.k)
	}
	meet.gather(r, shown{})
	env.Ops.Copy(t, sum)
	env.Arena.Release(mark)
}

// sum replaces the statistics t, f64, by their sum over all ranks.
func sum(meet *meeting, r int, t engine.Tensor) {
	total := make([]float64, t.Len())
	for _, s := range meet.gather(r, shown{k: t}) {
		for i := range total {
			total[i] += math.Float64frombits(binary.LittleEndian.Uint64(s.k.Buf.Host[8*i:]))
		}
	}
	meet.gather(r, shown{})
	for i, v := range total {
		binary.LittleEndian.PutUint64(t.Buf.Host[8*i:], math.Float64bits(v))
	}
}
