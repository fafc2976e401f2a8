package zimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// The epsilons of the norms of blocks and captions, of queries and keys, and of the last layer.
const (
	eps      = 1e-5
	headEps  = 0x1p-23
	finalEps = 1e-6
)

// Model is a Z-Image model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text and runs it, with its pads, through its own blocks.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	n, textRows, lt := p.N, entries[0].Context.Rows, p.Lt
	p.RoPE = layers.UploadRotation(env, p.Lt+grid.Tokens(), spec.HeadDim/2, func() layers.Rotation {
		return layers.PositionRotation(m.cfg.Axes, m.cfg.Theta, positions(lt, grid))
	})
	if m.Held.NoEmbed {
		return p, nil
	}
	p.Text = env.Arena.Alloc(env.DType, n, lt, spec.Width)
	mark := env.Arena.Mark()
	if textRows > 0 {
		context := layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context })
		env.Ops.RMSNorm(context, context, m.Net.Caption.Norm, eps)
		rows := layers.Scratch(env, p.Text, n, textRows, spec.Width)
		layers.Project(env, rows, context, m.Net.Caption.Linear)
		env.Ops.Copy(p.Text.Slice(1, 0, textRows), rows)
	}
	if lt > textRows {
		env.Ops.Copy(p.Text.Slice(1, textRows, lt), m.Net.Pads.Text.Unsqueeze(0).Broadcast(0, n).Broadcast(1, lt-textRows))
	}
	alone := env // every rank computes the whole text
	alone.Reduce, alone.Gather, alone.Scatter, alone.Attend = nil, nil, nil, dit.Whole(env.Ops, env.Arena)
	rope := engine.RoPE{Cos: p.RoPE.Cos.Slice(0, 0, lt), Sin: p.RoPE.Sin.Slice(0, 0, lt)}
	for i := range m.Net.Text {
		b := block(m.Net.Text[i])
		if lt > 0 {
			b.run(alone, p.Text, engine.Tensor{}, spec, dit.Attention{RoPE: rope, Rows: dit.Rows{Text: dit.Range{End: lt}}})
		}
	}
	env.Arena.Release(mark)
	return p, nil
}

// positions returns the positions of all tokens: text token k of lt at (k+1, 0, 0), image tokens at (lt+1, row,
// column), image pads at (0, 0, 0).
func positions(lt int, g dit.Grid) [][3]int {
	at := make([][3]int, lt+g.Tokens())
	for k := range lt {
		at[k][0] = k + 1
	}
	for i := range g.Y * g.X {
		at[lt+i] = [3]int{lt + 1, i / g.X, i % g.X}
	}
	return at
}

// Modulate embeds every timestep: [S, n, M]. From that come Image [S, n, 4E] of the blocks (scale and gate of the
// attention, then of the MLP, gates through tanh) and Head [S, n, E+N]: the last layer's scale, then the gate -1 for
// each of the N numbers that it writes.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	n := p.N
	s := len(timesteps) / n
	t := make([]float32, len(timesteps))
	for i, v := range timesteps {
		t[i] = (1 - v) * float32(m.cfg.TimeFactor)
	}
	out := dit.NewModulation(m.Spec())
	out.Vector = env.Arena.Alloc(engine.F32, s, n, m.Net.Time.Out.N())
	if !m.Held.NoHead {
		out.Head = env.Arena.Alloc(engine.F32, s, n, m.cfg.Hidden+m.Net.Final.Linear.N())
	}
	mark := env.Arena.Mark()
	f := layers.Upload(env, layers.TimestepFeatures(t, features), s, n, features)
	layers.MLP(env, out.Vector, f, m.Net.Time.In, m.Net.Time.Out, engine.SiLU)
	if !m.cfg.Plain {
		f = out.Vector
	}
	env.Ops.Activate(f, out.Vector, engine.SiLU)
	if !m.Held.NoHead {
		scale := env.Arena.Alloc(engine.F32, s, n, m.cfg.Hidden)
		env.Ops.Linear(scale, f, m.Net.Final.Mod, engine.Epilogue{})
		env.Ops.Copy(out.Head.Slice(2, 0, m.cfg.Hidden), scale)
		minus := env.Arena.Alloc(engine.F32, s, n, m.Net.Final.Linear.N())
		env.Ops.Fill(minus, -1)
		env.Ops.Copy(out.Head.Slice(2, m.cfg.Hidden, out.Head.Dim(2)), minus)
	}
	env.Arena.Release(mark)
	return out
}

func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	m.block(i).modulate(env, out, i)
}

// modulate computes the modulation of m, which is block i.
func (m *modulated) modulate(env dit.Env, out *dit.Modulation, i int) {
	s, n, e := out.Vector.Dim(0), out.Vector.Dim(1), m.mod().N()/4
	out.Image[i] = env.Arena.Alloc(engine.F32, s, n, 4*e)
	env.Ops.Linear(out.Image[i], out.Vector, m.mod(), engine.Epilogue{})
	layers.Tanh(env, out.Image[i].Slice(2, e, 2*e))
	layers.Tanh(env, out.Image[i].Slice(2, 3*e, 4*e))
}

// block returns block i: first those of the image, then those of text and image.
func (m *Model) block(i int) *modulated {
	if i < m.cfg.Refiners {
		return &m.Net.Image[i]
	}
	return &m.Net.Layers[i-m.cfg.Refiners]
}

// Embed projects the latent's tokens, whose features the checkpoint has in the order (row, column, channel), appends
// pads, and copies the text rows.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	layers.Entries(env, s.TextRows(), s.P.Text.Slice(1, s.Rows.Text.Start, s.Rows.Text.End))
	rows, g, r := s.ImageRows(), s.P.Grid, s.Rows.Image
	imageRows := max(0, min(r.End, g.Y*g.X)-r.Start) // image rows without pads
	if imageRows > 0 {
		mark := env.Arena.Mark()
		c, p := m.cfg.Channels, m.cfg.PatchSize
		by := layers.Scratch(env, x, s.B, imageRows, p*p*c)
		env.Ops.Copy(by.Split(2, p*p, c), x.Slice(1, 0, imageRows).Split(2, c, p*p).Transpose(2, 3))
		env.Ops.Linear(rows.Slice(1, 0, imageRows), by, m.Net.Patch, engine.Epilogue{})
		env.Arena.Release(mark)
	}
	if n := r.Len() - imageRows; n > 0 {
		env.Ops.Copy(rows.Slice(1, imageRows, imageRows+n), m.Net.Pads.Image.Unsqueeze(0).Broadcast(0, s.B).Broadcast(1, n))
	}
}

// Head normalizes, scales, projects and negates the image rows.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	x := s.ImageRows()
	if x.Dim(1) == 0 {
		return
	}
	mark, e, mod := env.Arena.Mark(), m.cfg.Hidden, s.M.Head.Index(0, s.Step)
	h := layers.Scratch(env, x, x.Dim(0), x.Dim(1), e)
	env.Ops.AdaLN(h, x, engine.Tensor{}, mod.Slice(1, 0, e), finalEps)
	env.Ops.Linear(out, h, m.Net.Final.Linear, engine.Epilogue{Gate: mod.Slice(1, e, mod.Dim(1))})
	env.Arena.Release(mark)
}
