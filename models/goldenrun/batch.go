package goldenrun

import (
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/weights/goldenweights"
)

// Batch evaluates two latents per entry at the second of three timesteps whose modulations were computed together, and
// compares the result with separate evaluations. This checks the order of items, modulation rows and steps in a batch.
func (f Family) Batch(t *testing.T) {
	f = f.brief(t)
	for _, name := range f.Models {
		t.Run(name, func(t *testing.T) {
			m := f.load(t, NewOps(), name, dit.Held{})
			cases, err := goldenweights.Cases(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cases {
				if c.N() == 2 {
					batch(t, m, c)
					return
				}
			}
			batch(t, m, cases[0])
		})
	}
}

func batch(t *testing.T, m dit.Model, c Case) {
	t.Helper()
	spec, n := m.Spec(), c.N()
	env := mustEnv(t, NewOps())
	grid := c.Grid(spec)
	p, err := Prepare(env, m, c.Entries(), grid)
	if err != nil {
		t.Fatal(err)
	}
	times := append(append(make([]float32, n), c.Timesteps...), make([]float32, n)...)
	rows := dit.Rows{Image: dit.Range{Start: 0, End: spec.Split(grid)}}
	if spec.JointText() {
		rows.Text = dit.Range{Start: 0, End: p.Lt}
	}
	li, in, out := grid.Tokens(), spec.FeaturesIn(), spec.FeaturesOut()
	one := rowsOf(c, spec, grid, rows.Image)
	two := make([]float32, 2*len(one)) // item 2e is entry e's latent, item 2e+1 the same with half the values
	for e := range n {
		for i := range li * in {
			v := one[e*li*in+i]
			two[2*e*li*in+i], two[(2*e+1)*li*in+i] = v, v/2
		}
	}
	both := forward(env, m, p, Modulate(env, m, p, times), 1, 2*n, rows, two)
	half := make([]float32, len(one))
	for i, v := range one {
		half[i] = v / 2
	}
	mod := Modulate(env, m, p, c.Timesteps)
	first, second := forward(env, m, p, mod, 0, n, rows, one), forward(env, m, p, mod, 0, n, rows, half)
	for e := range n {
		for k, want := range [][]float32{first[e*li*out : (e+1)*li*out], second[e*li*out : (e+1)*li*out]} {
			got := both[(2*e+k)*li*out : (2*e+k+1)*li*out]
			if _, err := Compare(got, want, 2e-6); err != nil {
				t.Fatalf("%s: latent %d of entry %d in a batch of %d: %v", c.Name, k, e, 2*n, err)
			}
		}
	}
}

// forward runs Embed, all blocks and Head for b items at one step and returns the prediction rows.
func forward(env dit.Env, m dit.Model, p *dit.Prepared, mod *dit.Modulation, step, b int, rows dit.Rows,
	values []float32,
) []float32 {
	spec := m.Spec()
	mark := env.Arena.Mark()
	s := dit.NewState(env, spec, p, mod, step, b, rows, rows)
	li := rows.Image.Len() + spec.Alike(p.Grid)
	x, out := env.Arena.Alloc(env.DType, b, li, spec.FeaturesIn()), env.Arena.Alloc(env.DType, b, li, spec.FeaturesOut())
	env.Ops.Upload(x, values)
	env.Ops.Fill(out, 0) // narrower rows are not filled
	m.Embed(env, s, x)
	outputs := make([]engine.Tensor, len(spec.Blocks))
	for i := range spec.Blocks {
		var skip engine.Tensor
		if from := spec.Blocks[i].Skip; from >= 0 {
			skip = outputs[from]
		}
		m.Block(env, i, s, skip)
		outputs[i] = env.Arena.Alloc(env.DType, s.X.Shape()...)
		env.Ops.Copy(outputs[i], s.X)
	}
	m.Head(env, s, out)
	result := make([]float32, out.Len())
	if err := env.Ops.Download(result, out).Wait(); err != nil {
		panic(err)
	}
	for row := range b * li { // what follows a token's elements is not defined
		n, g := spec.OutChannels*spec.PatchSize*spec.PatchSize, p.Grid
		if at := row%li - g.Y*g.X; at >= 0 && at < g.Sound {
			n = spec.Sound.Channels * spec.Sound.Patch
		}
		clear(result[row*spec.FeaturesOut()+n : (row+1)*spec.FeaturesOut()])
	}
	env.Arena.Release(mark)
	return result
}

// Measured runs a case with a recording Ops and an arena without memory and checks that the peak is that of a real run
// and that every block releases what it allocated. Sizes can thus be planned before anything is allocated.
func (f Family) Measured(t *testing.T) {
	f = f.brief(t)
	for _, name := range f.Models {
		t.Run(name, func(t *testing.T) {
			cases, err := goldenweights.Cases(name)
			if err != nil {
				t.Fatal(err)
			}
			real := mustEnv(t, NewOps())
			if _, err := Whole(real, f.load(t, NewOps(), name, dit.Held{}), cases[0], nil); err != nil {
				t.Fatal(err)
			}
			rec := engine.NewRecorder()
			arena := engine.NewMeasuringArena("measured")
			env := dit.Env{Ops: rec, Arena: arena, Attend: dit.Whole(rec, arena)}
			if _, err := Whole(env, f.load(t, rec, name, dit.Held{}), cases[0], nil); err != nil {
				t.Fatal(err)
			}
			if got, want := env.Arena.Peak(), real.Arena.Peak(); got != want {
				t.Fatalf("peak of the measured run is %d bytes, of the real one %d", got, want)
			}
			if rec.Calls["Alloc"] > 1 {
				t.Fatalf("%d allocations outside the arena, want only the one of the weights", rec.Calls["Alloc"])
			}
		})
	}
}

// Once evaluates m on one entry and one seeded latent of y by x pixels at a timestep. It returns the prediction rows
// [Li, FeaturesOut].
func Once(env dit.Env, m dit.Model, e dit.Entry, y, x int, timestep float32) ([]float32, error) {
	spec := m.Spec()
	grid := spec.Tokens(y, x)
	p, err := Prepare(env, m, []dit.Entry{e}, grid)
	if err != nil {
		return nil, err
	}
	rows := dit.Rows{Image: dit.Range{Start: 0, End: spec.Split(grid)}}
	if spec.JointText() {
		rows.Text = dit.Range{Start: 0, End: p.Lt}
	}
	values := goldenweights.Noise("once", grid.Tokens()*spec.FeaturesIn())
	return forward(env, m, p, Modulate(env, m, p, []float32{timestep}), 0, 1, rows, values), nil
}
