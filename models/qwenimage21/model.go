package qwenimage21

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

const (
	eps    = 1e-6 // of all norms
	theta  = 10000
	factor = 1000 // of timesteps
)

// Model is a Qwen-Image-2.1 model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the preface, for PrepareBlock, which also reads its modulation [1, 4E] in p.Source.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	runs := runsOf(spec, &entries[0])
	p.RoPE = layers.UploadRotation(env, p.Lt+grid.Tokens(), spec.HeadDim/2, func() layers.Rotation {
		at := positions(runs, grid)
		return layers.RotationAt(m.cfg.Axes, theta, len(at), func(token, axis int) float64 { return at[token][axis] })
	})
	p.CrossKV = make([]engine.Tensor, m.cfg.Depth)
	for i := range p.CrossKV {
		if m.Held.Has(i) {
			heads := m.Net.Blocks[i].K.N() / spec.HeadDim
			p.CrossKV[i] = env.Arena.Alloc(env.DType, p.N, p.Lt, 2, heads, spec.HeadDim)
		}
	}
	p.Source = m.modulations(env, 1, []float32{0}).Vector.Index(0, 0)
	p.Text = env.Arena.Alloc(env.DType, p.N, p.Lt, spec.Width)
	if !m.Held.NoEmbed {
		m.embed(env, p, runs)
	}
	return p, nil
}

// embed fills p.Text with text and references in the order of runs.
func (m *Model) embed(env dit.Env, p *dit.Prepared, runs []run) {
	mark := env.Arena.Mark()
	inOrder := *p // text, then references
	layers.EmbedJoint(env, m.Spec(), &inOrder, m.Net.TextOut, m.Net.ImageIn, func(context engine.Tensor) engine.Tensor {
		env.Ops.RMSNorm(context, context, m.Net.TextNorm, eps)
		hidden := env.Arena.Alloc(engine.F32, p.N, context.Dim(1), m.cfg.Hidden)
		env.Ops.Linear(hidden, context, m.Net.TextIn, engine.Epilogue{Act: engine.GELUTanh})
		return hidden
	})
	at, text, picture := 0, 0, p.Entries[0].Context.Rows
	for _, r := range runs {
		from := &text
		if r.picture() {
			from = &picture
		}
		env.Ops.Copy(p.Text.Slice(1, at, at+r.rows), inOrder.Text.Slice(1, *from, *from+r.rows))
		at, *from = at+r.rows, *from+r.rows
	}
	env.Arena.Release(mark)
}

// Modulate computes the modulation of every timestep. Image [S, n, 4E] is (scale, gate) of the attention, then of the
// MLP, the same for all blocks; Head [S, n, E] is a scale.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	return m.modulations(env, p.N, timesteps)
}

func (m *Model) modulations(env dit.Env, n int, timesteps []float32) *dit.Modulation {
	t := make([]float32, len(timesteps))
	for i, v := range timesteps {
		t[i] = rounded(env, rounded(env, v*factor)/factor) * factor
	}
	out := m.Modulation(env, n, family.Conditioning{
		Timesteps: t, In: m.Net.TimeIn, Out: m.Net.TimeOut, Head: m.Net.FinalMod, Shared: []*engine.Weight{m.Net.Mod},
	})
	for _, gate := range []int{1, 3} {
		layers.Tanh(env, out.Vector.Slice(2, gate*m.cfg.Hidden, (gate+1)*m.cfg.Hidden))
	}
	return out
}

// rounded rounds v to the type of activations.
func rounded(env dit.Env, v float32) float32 {
	if env.DType == engine.BF16 {
		return engine.F32FromBF16(engine.BF16FromF32(v))
	}
	return v
}

func (m *Model) ModulateBlock(_ dit.Env, out *dit.Modulation, i int) {
	if m.Held.Has(i) {
		out.Image[i] = out.Vector
	}
}

// Head normalizes the image rows, multiplies them by 1 + scale and projects them.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	x := s.ImageRows()
	if x.Dim(1) == 0 {
		return
	}
	mark := env.Arena.Mark()
	h := layers.Scratch(env, x, x.Shape()...)
	env.Ops.AdaLN(h, x, engine.Tensor{}, s.M.Head.Index(0, s.Step), eps)
	env.Ops.Linear(out, h, m.Net.Out, engine.Epilogue{})
	env.Arena.Release(mark)
}
