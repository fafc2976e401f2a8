package sd3

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// eps is the epsilon of all norms of SD3.
const eps = 1e-6

// Model is an SD3 model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text and the pooled vectors and crops the middle of the position table. It returns an error for
// grids larger than the table.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	p, err := layers.Begin(m.Spec(), entries, grid)
	if err != nil {
		return nil, err
	}
	side := m.cfg.PosSide
	if grid.Y > side || grid.X > side {
		return nil, fmt.Errorf("sd3: latent of %d x %d has %d x %d tokens, this model has positions for %d x %d",
			grid.LatentY, grid.LatentX, grid.Y, grid.X, side, side)
	}
	p.Vector = env.Arena.Alloc(engine.F32, p.N, m.cfg.Hidden)
	if !m.Held.NoEmbed {
		p.Pos = env.Arena.Alloc(env.DType, 1, grid.Tokens(), m.cfg.Hidden)
		top, left := (side-grid.Y)/2, (side-grid.X)/2
		// [1, G*G, E] -> [1, G, G, E] -> crop [1, Y, X, E] -> [1, Y*X, E]
		env.Ops.Copy(p.Pos.Split(1, grid.Y, grid.X),
			m.Net.Pos.Split(1, side, side).Slice(1, top, top+grid.Y).Slice(2, left, left+grid.X))
		layers.EmbedJoint(env, m.Spec(), p, m.Net.Context, nil, nil)
	}
	mark := env.Arena.Mark()
	layers.MLP(env, p.Vector, layers.Pooled(env, entries, m.cfg.PooledDim), m.Net.Vector.In, m.Net.Vector.Out, engine.SiLU)
	env.Arena.Release(mark)
	return p, nil
}

// Modulate computes the vector of every timestep and entry (time + pooled). From it come Image [S, n, 6E], or
// [S, n, 9E] where the block attends twice, Text [S, n, 6E], of the last block [S, n, 2E], and Head [S, n, 2E], with
// parts in the order of the checkpoint.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	return m.Modulation(env, p.N, family.Conditioning{
		Timesteps: timesteps, In: m.Net.Time.In, Out: m.Net.Time.Out, Add: p.Vector, Head: m.Net.Final.Mod,
	})
}

func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	text, image, _ := m.Net.Blocks[i].view()
	out.Text[i], out.Image[i] = layers.Modulate(env, out.Vector, text.Mod), layers.Modulate(env, out.Vector, image.Mod)
}
