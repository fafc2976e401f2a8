package flux2

import (
	"cmp"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

const (
	eps    = 1e-6 // of all norms
	factor = 1000 // of timesteps and guidance
	step   = 10   // from one reference to the next on the first axis
)

// Model is a FLUX.2 model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text, the references and the guidance.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	p.RoPE = layers.UploadRotation(env, p.Lt+grid.Tokens(), spec.HeadDim/2, func() layers.Rotation {
		return layers.PositionRotation(m.cfg.Axes, m.cfg.Theta, m.positions(&entries[0], grid))
	})
	if m.Net.Guidance != nil {
		p.Vector = layers.Guidance(env, entries, factor, m.Net.Guidance.In, m.Net.Guidance.Out)
	}
	if !m.Held.NoEmbed {
		layers.EmbedJoint(env, spec, p, m.Net.TxtIn, m.Net.ImgIn, nil)
	}
	return p, nil
}

// method returns how the references of an entry are placed.
func method(e *dit.Entry) string { return cmp.Or(e.Method, layers.ByIndex) }

// positions returns the position of every token of an entry: text, references, image.
func (m *Model) positions(e *dit.Entry, g dit.Grid) [][4]int {
	return layers.Positions(m.Spec(), e, g, method(e), step, func(k int) [4]int { return [4]int{0, 0, 0, k} })
}

// Modulate computes the modulations of all blocks: Vector [S, N, 15E] has those of image and text in double blocks (6E
// each) and of single blocks (3E), Head [S, N, 2E] is (shift, scale). N is n. Where references are modulated as at
// timestep 0, N is 2n, and the second half of the rows is for them.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	t, n := layers.Timesteps(m.Spec(), p, timesteps, factor, method(&p.Entries[0]))
	return m.Modulation(env, n, family.Conditioning{
		Timesteps: t, In: m.Net.Time.In, Out: m.Net.Time.Out, Add: p.Vector,
		Head: m.Net.FinalMod, Shared: []*engine.Weight{m.Net.ImageMod, m.Net.TextMod, m.Net.SingleMod},
	})
}

// ModulateBlock picks the modulations of block i.
func (m *Model) ModulateBlock(_ dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	e := m.cfg.Hidden
	if i < m.cfg.Depth {
		out.Image[i], out.Text[i] = out.Vector.Slice(2, 0, 6*e), out.Vector.Slice(2, 6*e, 12*e)
		return
	}
	out.Image[i] = out.Vector.Slice(2, 12*e, 15*e)
}
