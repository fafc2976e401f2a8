package auraflow

import (
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// eps is the epsilon of all norms.
const eps = 1e-5

// Model is an AuraFlow model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text after the registers and picks the positions of the image.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	p, err := layers.Begin(m.Spec(), entries, grid)
	if err != nil || m.Held.NoEmbed {
		return p, err
	}
	n, textRows, lt, e := p.N, entries[0].Context.Rows, p.Lt, m.cfg.Hidden
	p.Text, p.Pos = env.Arena.Alloc(env.DType, n, lt, e), env.Arena.Alloc(env.DType, 1, grid.Tokens(), e)
	mark := env.Arena.Mark()
	env.Ops.Copy(p.Text.Slice(1, 0, lt-textRows), m.Net.Registers.Broadcast(0, n))
	if textRows > 0 {
		context := layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context })
		layers.Project(env, p.Text.Slice(1, lt-textRows, lt), context, m.Net.Text)
	}
	env.Arena.Release(mark)
	m.positions(env, p.Pos.Split(1, grid.Y, grid.X), grid)
	return p, nil
}

// positions fills pos [1, Y, X, E] with the middle of the square of learned positions. If the image is larger, the
// square is interpolated to one as wide as the longer side (torch's bilinear interpolation, align_corners=False).
func (m *Model) positions(env dit.Env, pos engine.Tensor, g dit.Grid) {
	edge, wide := m.cfg.Edge, max(m.cfg.Edge, g.Y, g.X)
	top, left := (wide-g.Y)/2, (wide-g.X)/2
	if wide == edge {
		env.Ops.Copy(pos, m.Net.Positions.Split(1, edge, edge).Slice(1, top, top+g.Y).Slice(2, left, left+g.X))
		return
	}
	between := func(i int) (at [2]int, share [2]float32) {
		x := max(0, (float32(i)+0.5)*(float32(edge)/float32(wide))-0.5)
		first := int(math.Floor(float64(x)))
		part := x - float32(first)
		return [2]int{first, min(first+1, edge-1)}, [2]float32{1 - part, part}
	}
	const some = 16 // columns at a time, which bounds the scratch memory
	e := m.cfg.Hidden
	for y := range g.Y {
		rows, down := between(top + y)
		for x := 0; x < g.X; x += some {
			mark, n := env.Arena.Mark(), min(some, g.X-x)
			sum := env.Arena.Alloc(engine.F32, n, 1, e)
			corner, gate := env.Arena.Alloc(engine.F32, n, 1, e), env.Arena.Alloc(engine.F32, n, e)
			env.Ops.Fill(sum, 0)
			for k := range 4 {
				ids, shares := make([]int32, n), make([]float32, n)
				for i := range n {
					columns, right := between(left + x + i)
					ids[i], shares[i] = int32(rows[k/2]*edge+columns[k%2]), down[k/2]*right[k%2]
				}
				inner := env.Arena.Mark()
				env.Ops.Gather(corner.Index(1, 0), m.Net.Positions.Index(0, 0), ids)
				env.Ops.Copy(gate, layers.Upload(env, shares, n, 1).Broadcast(1, e))
				env.Ops.GatedAdd(sum, sum, gate, corner, engine.Tensor{})
				env.Arena.Release(inner)
			}
			env.Ops.Copy(pos.Index(0, 0).Index(0, y).Slice(0, x, x+n), sum.Index(1, 0))
			env.Arena.Release(mark)
		}
	}
}

// Modulate embeds every timestep, from which come Image [S, n, 6E], in double blocks Text [S, n, 6E], and Head
// [S, n, 2E] (shift, scale).
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	return m.Modulation(env, p.N, family.Conditioning{
		Timesteps: timesteps, Scale: 1000, In: m.Net.Time.In, Out: m.Net.Time.Out, Head: m.Net.Mod,
	})
}

func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	if i < m.cfg.Double {
		out.Image[i] = layers.Modulate(env, out.Vector, m.Net.Double[i].ImageMod)
		out.Text[i] = layers.Modulate(env, out.Vector, m.Net.Double[i].TextMod)
	} else {
		out.Image[i] = layers.Modulate(env, out.Vector, m.Net.Single[i-m.cfg.Double].Mod)
	}
}

// Head modulates the image rows by (shift, scale) and projects them.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	x := s.ImageRows()
	if x.Dim(1) == 0 {
		return
	}
	mark, e, mod := env.Arena.Mark(), m.cfg.Hidden, s.M.Head.Index(0, s.Step)
	h := layers.Scratch(env, x, x.Dim(0), x.Dim(1), e)
	env.Ops.Fill(h, 1)
	env.Ops.GatedAdd(h, x, layers.Chunk(mod, e, 0), h, engine.Tensor{}) // x + shift
	env.Ops.GatedAdd(h, h, layers.Chunk(mod, e, 1), x, engine.Tensor{})
	env.Ops.Linear(out, h, m.Net.Final, engine.Epilogue{})
	env.Arena.Release(mark)
}
