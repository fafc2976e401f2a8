package wan

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

const (
	eps       = 1e-6 // of the norms of blocks
	visionEps = 1e-5
	theta     = 10000
)

// Model is a Wan model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text and the picture's states, for PrepareBlock, which reads them in p.Source, one below the
// other.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	rows := m.pictureRows(&entries[0])
	if n := m.cfg.PictureRows; n > 0 && rows > n {
		return nil, fmt.Errorf("wan: %d rows of pictures' states, want at most %d: two pictures", rows, n)
	}
	for i := range entries {
		if f := entries[i].Frames; !slices.Equal(f, entries[0].Frames) || f != nil && len(f) != max(1, grid.T) {
			return nil, fmt.Errorf("wan: entry %d: timesteps of %d frames, want those of %d, the same in all entries", i, len(f),
				max(1, grid.T))
		}
	}
	if err := layers.Concat(env, spec, p); err != nil {
		return nil, err
	}
	frame := grid.Frame()
	p.RoPE = layers.UploadRotation(env, grid.Tokens(), spec.HeadDim/2, func() layers.Rotation {
		at := make([][3]int, grid.Tokens())
		for i := range at {
			at[i] = [3]int{i / (frame.Y * frame.X), i / frame.X % frame.Y, i % frame.X}
		}
		return layers.PositionRotation(m.cfg.axes(), theta, at)
	})
	p.CrossKV = make([]engine.Tensor, m.cfg.Depth)
	p.Source = env.Arena.Alloc(engine.F32, p.N, p.Lt+rows, m.cfg.Hidden)
	mark := env.Arena.Mark()
	text := layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context })
	layers.MLP(env, p.Source.Slice(1, 0, p.Lt), text, m.Net.Text.In, m.Net.Text.Out, engine.GELUTanh)
	env.Arena.Release(mark)
	if rows > 0 {
		m.embedPicture(env, p.Source.Slice(1, p.Lt, p.Lt+rows), entries)
		env.Arena.Release(mark)
	}
	return p, nil
}

// pictureRows returns the rows of an entry's picture states that the network reads.
func (m *Model) pictureRows(e *dit.Entry) int {
	if m.cfg.VisionDim == 0 {
		return 0
	}
	return e.Vision.Rows
}

// embedPicture writes the embedded states of pictures to y [n, rows, E]. What it takes from the arena is the caller's
// to release.
func (m *Model) embedPicture(env dit.Env, y engine.Tensor, entries []dit.Entry) {
	w := m.Net.Vision
	x := layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Vision })
	if w.Positions != nil {
		env.Ops.Add(x, x, w.Positions.Rows.Slice(1, 0, x.Dim(1)))
	}
	env.Ops.LayerNorm(x, x, w.NormIn, w.BiasIn, visionEps)
	embedded := env.Arena.Alloc(engine.F32, y.Shape()...)
	layers.MLP(env, embedded, x, w.In, w.Out, engine.GELUErf)
	env.Ops.LayerNorm(y, embedded, w.NormOut, w.BiasOut, visionEps)
}

// PrepareBlock computes the keys and values of block i: of the text, then of the picture, if the network has layers for
// one, which read the text where there is none.
func (m *Model) PrepareBlock(env dit.Env, p *dit.Prepared, i int) {
	if !m.Held.Has(i) {
		return
	}
	w, d, l, text := &m.Net.Blocks[i], m.Spec().HeadDim, p.Lt, p.Source.Slice(1, 0, p.Lt)
	picture := p.Source.Slice(1, p.Lt, p.Source.Dim(1))
	if w.Picture != nil {
		if picture.Dim(1) == 0 {
			picture = text
		}
		l += picture.Dim(1)
	}
	kv := env.Arena.Alloc(env.DType, p.N, l, 2, w.Cross.K.N()/d, d)
	p.CrossKV[i] = kv
	type part struct {
		x, to, keys engine.Tensor
		k, v        *engine.Weight
		norm        engine.Tensor
	}
	parts := []part{{x: text, to: kv.Slice(1, 0, p.Lt), k: w.Cross.K, v: w.Cross.V, norm: w.Cross.Key}}
	if w.Picture != nil {
		parts = append(parts, part{x: picture, to: kv.Slice(1, p.Lt, l), k: w.Picture.K, v: w.Picture.V, norm: w.Picture.Key})
	}
	mark, wide := env.Arena.Mark(), make([]layers.Wide, len(parts))
	for n := range parts {
		s := &parts[n]
		s.keys = env.Arena.Alloc(engine.F32, p.N, s.x.Dim(1), s.k.N())
		env.Ops.Linear(s.keys, s.x, s.k, engine.Epilogue{})
		wide[n] = m.wide(s.keys, s.norm)
	}
	layers.WideRMS(env, m.cfg.Hidden, eps, wide...)
	for _, s := range parts {
		env.Ops.Copy(s.to.Index(2, 0), layers.Heads(s.keys, d))
		env.Ops.Linear(s.keys, s.x, s.v, engine.Epilogue{})
		env.Ops.Copy(s.to.Index(2, 1), layers.Heads(s.keys, d))
	}
	env.Arena.Release(mark)
}

// wide returns rows [B, L, E'] with the weights of the heads of this rank, for a norm over the whole width.
func (m *Model) wide(x, weight engine.Tensor) layers.Wide {
	heads, d := m.Held.Share(m.cfg.Heads), m.Spec().HeadDim
	return layers.Wide{Rows: x, Weight: weight.Slice(0, heads.Start*d, heads.End*d)}
}

// Modulate computes the projection of every timestep, to which each block adds its table, and Head [S, N, 2E], the last
// layer's table plus the embedding of the timestep. N is n times the number of different parts of the timestep that
// frames have (dit.Entry.Frames), and the entries of one part follow one another.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	times := timesteps
	if parts := parts(&p.Entries[0]); parts != nil {
		times = nil
		for at := 0; at < len(timesteps); at += p.N {
			for _, part := range parts {
				for _, t := range timesteps[at : at+p.N] {
					times = append(times, t*part)
				}
			}
		}
	}
	return m.Modulation(env, p.N*len(times)/len(timesteps), family.Conditioning{
		Timesteps: times, Powers: true, In: m.Net.Time.In, Out: m.Net.Time.Out, Table: table(m.Net.Head.Table),
		Shared: []*engine.Weight{m.Net.TimeMod},
	})
}

// table returns a table [1, k, E] as [k, E], absent if it is not held.
func table(t engine.Tensor) engine.Tensor {
	if t.IsZero() {
		return t
	}
	return t.Index(0, 0)
}

// parts returns the different parts of the timestep that frames of an entry have; nil: all have the whole.
func parts(e *dit.Entry) []float32 {
	if e.Frames == nil {
		return nil
	}
	out := slices.Sorted(slices.Values(e.Frames))
	return slices.Compact(out)
}

// ModulateBlock adds the table of block i to the modulation that all blocks share.
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if m.Held.Has(i) {
		out.Image[i] = env.Arena.Alloc(engine.F32, out.Vector.Shape()...)
		env.Ops.Add(out.Image[i], out.Vector, table(m.Net.Blocks[i].Table).Merge(0).Unsqueeze(0).Unsqueeze(0))
	}
}
