package pixart

import (
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// eps is the epsilon of all norms of PixArt.
const eps = 1e-6

// features is the number of sinusoidal features of a timestep or a size.
const features = 256

// Model is a PixArt model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare computes the positions, what PrepareBlock computes keys and values from, and the size part of the timestep
// vector.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	p, err := layers.Begin(m.Spec(), entries, grid)
	if err != nil {
		return nil, err
	}
	for i, e := range entries {
		if e.Size != nil && len(e.Size) != 3 {
			return nil, fmt.Errorf("pixart: entry %d: size has %d values, want 3: height and width in pixels, aspect ratio",
				i, len(e.Size))
		}
	}
	positions, err := m.positions(grid)
	if err != nil {
		return nil, err
	}
	e := m.cfg.Hidden
	p.CrossKV, p.KeyLen = make([]engine.Tensor, m.cfg.Depth), layers.KeyLen(entries)
	if !m.Held.NoEmbed {
		p.Pos = env.Arena.Alloc(env.DType, 1, grid.Tokens(), e)
		env.Ops.Upload(p.Pos, positions)
	}
	p.Source = env.Arena.Alloc(engine.F32, p.N, p.Lt, e)
	if m.cfg.MicroSize {
		p.Vector = env.Arena.Alloc(engine.F32, p.N, e)
		m.sizes(env, p)
	}
	mark := env.Arena.Mark()
	context := layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context })
	layers.MLP(env, p.Source, context, m.Net.Caption.Up, m.Net.Caption.Down, engine.GELUTanh)
	env.Arena.Release(mark)
	return p, nil
}

// PrepareBlock computes the keys and values of the text for block i.
func (m *Model) PrepareBlock(env dit.Env, p *dit.Prepared, i int) {
	if !m.Held.Has(i) {
		return
	}
	w, d := m.Net.Blocks[i].Cross.KV, m.Spec().HeadDim
	p.CrossKV[i] = env.Arena.Alloc(env.DType, p.N, p.Lt, 2, w.N()/2/d, d) // all heads, or those of this rank
	layers.Project(env, p.CrossKV[i].Merge(3).Merge(2), p.Source, w)
}

// positions returns the position table by ComfyUI's rule: with r = (rows + columns)/2 of the latent and base =
// round(r/64)*64/PatchSize, token i of n on a side has the coordinate i/(n/base)/interpolation. interpolation is the
// config's, or round(r/64) if that is 0. Halves round to even.
func (m *Model) positions(g dit.Grid) ([]float32, error) {
	p := m.cfg.PatchSize
	if g.LatentY%p != 0 || g.LatentX%p != 0 {
		return nil, fmt.Errorf("pixart: latent of %d x %d: both sides must be multiples of %d", g.LatentY, g.LatentX, p)
	}
	steps := math.RoundToEven(float64((g.LatentY+g.LatentX)/2) / 64)
	if steps == 0 {
		return nil, fmt.Errorf("pixart: latent of %d x %d is too small: rows and columns must add up to more than 65 "+
			"(more than 260 pixels on average)", g.LatentY, g.LatentX)
	}
	interpolation := m.cfg.Interpolation
	if interpolation == 0 {
		interpolation = steps
	}
	return layers.SinCosPositions(m.cfg.Hidden, g, int(steps)*64/p, interpolation), nil
}

// sizes fills p.Vector with the embedded image size (height, width: two thirds) and aspect ratio (one third).
func (m *Model) sizes(env dit.Env, p *dit.Prepared) {
	mark := env.Arena.Mark()
	third := m.cfg.Hidden / 3
	for i, entry := range p.Entries {
		cond := entry.Size
		if cond == nil {
			cond = sizeCond(family.Uncropped(8*p.Grid.LatentY, 8*p.Grid.LatentX))
		}
		row := p.Vector.Slice(0, i, i+1)
		f := layers.Upload(env, layers.TimestepFeatures(cond, features), 3, features)
		size := row.Slice(1, 0, 2*third).Split(1, 2, third) // [1, 2E/3] -> [1, 2, E/3]
		layers.MLP(env, size, f.Slice(0, 0, 2).Unsqueeze(0), m.Net.Size.In, m.Net.Size.Out, engine.SiLU)
		layers.MLP(env, row.Slice(1, 2*third, 3*third), f.Slice(0, 2, 3), m.Net.Ratio.In, m.Net.Ratio.Out, engine.SiLU)
	}
	env.Arena.Release(mark)
}

// Modulate computes t_block(time + size), to which every block adds its table: Image [S, n, 6E]. Head [S, n, 2E] is the
// last layer's table plus time + size itself.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	return m.Modulation(env, p.N, family.Conditioning{
		Timesteps: timesteps, In: m.Net.Time.In, Out: m.Net.Time.Out, Add: p.Vector,
		Table: m.Net.Final.Table, Shared: []*engine.Weight{m.Net.TBlock},
	})
}

// ModulateBlock adds the table of block i to the modulation that all blocks share.
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if m.Held.Has(i) {
		out.Image[i] = env.Arena.Alloc(engine.F32, out.Vector.Shape()...)
		// [6, E] -> [1, 1, 6E]
		env.Ops.Add(out.Image[i], out.Vector, m.Net.Blocks[i].Table.Merge(0).Unsqueeze(0).Unsqueeze(0))
	}
}

// Block runs block i: x += gate1 * attention(norm1(x)), x += cross-attention(x), x += gate2 * mlp(norm2(x)).
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	b, x, e := &m.Net.Blocks[i], s.X, m.cfg.Hidden
	mod := s.M.Image[i].Index(0, s.Step)
	h := layers.Scratch(env, x, s.B, s.Rows.Len(), e)
	m.attentions(env, i, s, h)
	layers.AdaLN(env, h, x, layers.Chunk(mod, e, 3), layers.Chunk(mod, e, 4), eps)
	b.MLP.Add(env, x, h, layers.Chunk(mod, e, 5), s.Wide)
	env.Arena.Release(mark)
}

// attentions adds self-attention over the image and cross-attention to the text; h is scratch.
func (m *Model) attentions(env dit.Env, i int, s *dit.State, h engine.Tensor) {
	b, x, e, d := &m.Net.Blocks[i], s.X, m.cfg.Hidden, m.Spec().HeadDim
	mod := s.M.Image[i].Index(0, s.Step)
	layers.AdaLN(env, h, x, layers.Chunk(mod, e, 0), layers.Chunk(mod, e, 1), eps)
	attended, free := layers.Attended(env, dit.Attention{Block: i, Rows: s.Wide, ImageOnly: true}, h, b.Attn.QKV, d, 1)
	layers.RowLinear(env, x, attended, b.Attn.Proj, layers.Chunk(mod, e, 2), s.Wide)

	query := free.Slice(2, 0, b.Cross.Query.N())
	layers.ColumnLinear(env, query, x, b.Cross.Query, s.Wide, engine.ActNone)
	layers.CrossAttend(env, layers.Heads(attended, d), layers.Heads(query, d), s.P.CrossKV[i], s.P.KeyLen)
	layers.RowLinear(env, x, attended, b.Cross.Proj, engine.Tensor{}, s.Wide)
}
