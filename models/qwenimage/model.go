package qwenimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

const (
	eps      = 1e-6 // of all norms
	features = 256  // sinusoidal features of a timestep
	theta    = 10000
)

// Model is a Qwen-Image model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text and the references.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	p.RoPE = layers.UploadRotation(env, p.Lt+grid.Tokens(), spec.HeadDim/2, func() layers.Rotation {
		return layers.PositionRotation(m.cfg.Axes, theta, m.positions(&entries[0], grid))
	})
	if m.Held.NoEmbed {
		return p, nil
	}
	layers.EmbedJoint(env, spec, p, m.Net.TextIn, m.Net.ImgIn, func(context engine.Tensor) engine.Tensor {
		env.Ops.RMSNorm(context, context, m.Net.TextNorm, eps)
		return context
	})
	return p, nil
}

// Modulate computes the vector of every timestep. From it come Image and Text [S, N, 6E] of the blocks, and Head
// [S, N, 2E] (scale, shift). N is n. Where references are modulated as at timestep 0, N is 2n, and the second half of
// the rows is for them.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	timesteps, n := layers.Timesteps(m.Spec(), p, timesteps, 1, m.method(&p.Entries[0]))
	var alpha engine.Tensor
	if t := m.Net.Alpha; t != nil {
		alpha = t.Rows.Slice(0, 0, 1)
	}
	return m.Modulation(env, n, family.Conditioning{
		Timesteps: timesteps, Scale: 1000, In: m.Net.Time.In, Out: m.Net.Time.Out, Add: alpha, Head: m.Net.FinalMod,
	})
}

func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	w := &m.Net.Blocks[i]
	out.Image[i], out.Text[i] = layers.Modulate(env, out.Vector, w.ImageMod), layers.Modulate(env, out.Vector, w.TextMod)
}
