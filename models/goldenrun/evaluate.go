package goldenrun

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// Seen is called after every block of a run on one rank with the block index and the rows of X, [B, L, E], followed by
// those of a stream of sound. It may be nil.
type Seen func(block int, x []float32, rows dit.Rows)

// Whole evaluates m on case c with one rank and returns the latents [n, C, Y, X] that the network predicts. env must
// come from NewEnv.
func Whole(env dit.Env, m dit.Model, c Case, seen Seen) ([]float32, error) {
	spec := m.Spec()
	grid := c.Grid(spec)
	p, err := Prepare(env, m, c.Entries(), grid)
	if err != nil {
		return nil, err
	}
	rows := dit.Rows{Image: dit.Range{Start: 0, End: spec.Split(grid)}}
	if spec.JointText() {
		rows.Text = dit.Range{Start: 0, End: p.Lt}
	}
	out := evaluate(env, func(int) dit.Model { return m }, p, c, rows, seen)
	return latents(c, spec, grid, out), nil
}

// Prepare calls m.Prepare, and m.PrepareBlock for every block.
func Prepare(env dit.Env, m dit.Model, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	p, err := m.Prepare(env, entries, grid)
	for i := 0; err == nil && i < len(m.Spec().Blocks); i++ {
		m.PrepareBlock(env, p, i)
	}
	return p, err
}

// Modulate calls m.Modulate, and m.ModulateBlock for every block.
func Modulate(env dit.Env, m dit.Model, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	out := m.Modulate(env, p, timesteps)
	for i := range m.Spec().Blocks {
		m.ModulateBlock(env, out, i)
	}
	return out
}

// rowsOf patchifies the latents of all items and returns the image rows r and the rows that all ranks have:
// [n, li, FeaturesIn].
func rowsOf(c Case, spec *dit.Spec, grid dit.Grid, r dit.Range) []float32 {
	f := spec.FeaturesIn()
	latent, size := c.Latent(), product(c.X[1:])
	sounds, _ := c.Sounds()
	var out []float32
	for i := range c.N() {
		all := make([]float32, grid.Tokens()*f)
		patchify(all, latent[i*size:(i+1)*size], spec.Channels, f, grid, spec.PatchSize)
		eachSound(spec, grid, f, func(row, at int) { all[row] = sounds[i*len(sounds)/c.N()+at] })
		out = append(out, all[r.Start*f:r.End*f]...)
		out = append(out, all[spec.Split(grid)*f:]...)
	}
	return out
}

// latents is the inverse of rowsOf for outputs that cover all rows.
func latents(c Case, spec *dit.Spec, grid dit.Grid, rows []float32) []float32 {
	f, size := spec.FeaturesOut(), product(c.X[1:])
	_, result := c.Sounds()
	var out []float32
	for i := range c.N() {
		item, of := make([]float32, size), rows[i*grid.Tokens()*f:(i+1)*grid.Tokens()*f]
		unpatchify(item, of, spec.Channels, f, grid, spec.PatchSize)
		sound := make([]float32, spec.Sound.Channels*grid.SoundY*grid.SoundX)
		eachSound(spec, grid, f, func(row, at int) { sound[at] = of[row] })
		result(i, sound)
		out = append(append(out, item...), sound...)
	}
	return out
}

// evaluate runs Modulate, Embed, all blocks and Head for the given rows and returns the prediction rows [n, li,
// FeaturesOut]. holder returns the model that holds a block. The holder of block 0 also runs Embed and Head.
func evaluate(env dit.Env, holder func(block int) dit.Model, p *dit.Prepared, c Case, rows dit.Rows,
	seen Seen,
) []float32 {
	m := holder(0)
	spec, n := m.Spec(), c.N()
	mods := map[dit.Model]*dit.Modulation{}
	for i := range spec.Blocks {
		if h := holder(i); mods[h] == nil {
			mods[h] = Modulate(env, h, p, c.Timesteps)
		}
	}
	s := dit.NewState(env, spec, p, mods[m], 0, n, rows, rows)
	li := rows.Image.Len() + spec.Alike(p.Grid)
	x := env.Arena.Alloc(env.DType, n, li, spec.FeaturesIn())
	out := env.Arena.Alloc(env.DType, n, li, spec.FeaturesOut())
	env.Ops.Upload(x, rowsOf(c, spec, p.Grid, rows.Image))
	m.Embed(env, s, x)
	outputs := make([]engine.Tensor, len(spec.Blocks))
	for i := range spec.Blocks {
		var skip engine.Tensor
		if from := spec.Blocks[i].Skip; from >= 0 {
			skip = outputs[from]
		}
		s.M = mods[holder(i)]
		holder(i).Block(env, i, s, skip)
		if isSkipped(spec, i) {
			outputs[i] = env.Arena.Alloc(env.DType, s.X.Shape()...)
			env.Ops.Copy(outputs[i], s.X)
		}
		if seen != nil {
			var values []float32
			for _, x := range []engine.Tensor{s.X, s.Sound} {
				if x.IsZero() {
					continue
				}
				part := make([]float32, x.Len())
				if err := env.Ops.Download(part, x).Wait(); err != nil {
					panic(err)
				}
				values = append(values, part...)
			}
			seen(i, values, rows)
		}
	}
	s.M = mods[m]
	m.Head(env, s, out)
	result := make([]float32, out.Len())
	if err := env.Ops.Download(result, out).Wait(); err != nil {
		panic(err)
	}
	return result
}

// isSkipped reports whether block i's output feeds a skip connection of a later block.
func isSkipped(spec *dit.Spec, i int) bool {
	for _, b := range spec.Blocks {
		if b.Skip == i {
			return true
		}
	}
	return false
}
