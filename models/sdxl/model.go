package sdxl

import (
	"fmt"
	"strings"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// Model is such a network. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare computes the part of the conditioning vector that does not depend on the timestep: pooled text and sizes.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	for i, e := range entries {
		if want := told(spec.Family); want != nil && e.Size != nil && len(e.Size) != len(want) {
			return nil, fmt.Errorf("%s: entry %d: size has %d values, want %d: %s", spec.Family, i, len(e.Size), len(want),
				strings.Join(want, ", "))
		}
	}
	p.CrossKV = make([]engine.Tensor, 1)
	p.Source = layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context })
	if m.cfg.VectorDim > 0 {
		p.Vector = env.Arena.Alloc(engine.F32, p.N, 4*m.cfg.Channels)
		mark := env.Arena.Mark()
		layers.MLP(env, p.Vector, m.vectors(env, p), m.Net.Label.In, m.Net.Label.Out, engine.SiLU)
		env.Arena.Release(mark)
	}
	return p, layers.Concat(env, spec, p)
}

// vectors returns the pooled text and the features of the sizes of every entry: [n, V]. An entry without sizes is of a
// positive prompt, for the whole latent.
func (m *Model) vectors(env dit.Env, p *dit.Prepared) engine.Tensor {
	pooled := m.Spec().PooledDim
	y := env.Arena.Alloc(engine.F32, p.N, m.cfg.VectorDim)
	env.Ops.Copy(y.Slice(1, 0, pooled), layers.Pooled(env, p.Entries, pooled))
	whole, traits := family.Uncropped(8*p.Grid.LatentY, 8*p.Grid.LatentX), m.cfg.traits()
	whole.Score = traits.Score
	var all []float32
	for _, e := range p.Entries {
		size := e.Size
		if size == nil {
			size = traits.SizeCond(whole)
		}
		all = append(all, layers.TimestepFeatures(size, features)...)
	}
	env.Ops.Copy(y.Slice(1, pooled, m.cfg.VectorDim), layers.Upload(env, all, p.N, m.cfg.VectorDim-pooled))
	return y
}

// scoreCond returns the numbers that the refiner reads of a picture.
func scoreCond(s family.Sizes) []float32 {
	return []float32{
		float32(s.Height), float32(s.Width), float32(s.Top), float32(s.Left), float32(s.Score),
	}
}

// sizeCond returns the numbers that XL reads of a picture.
func sizeCond(s family.Sizes) []float32 {
	return []float32{
		float32(s.Height), float32(s.Width), float32(s.Top), float32(s.Left), float32(s.TargetHeight), float32(s.TargetWidth),
	}
}

// PrepareBlock computes the keys and values of the text for all transformer blocks, side by side in one tensor
// [n, Lt, sum of 2E].
func (m *Model) PrepareBlock(env dit.Env, p *dit.Prepared, _ int) {
	wide := 0
	m.Net.eachBlock(func(b *block) { wide += b.Cross.Key.N() + b.Cross.Value.N() })
	p.CrossKV[0] = env.Arena.Alloc(env.DType, p.N, p.Lt, wide)
	at := 0
	m.Net.eachBlock(func(b *block) {
		for _, w := range []*engine.Weight{b.Cross.Key, b.Cross.Value} {
			layers.Project(env, p.CrossKV[0].Slice(2, at, at+w.N()), p.Source, w)
			at += w.N()
		}
	})
}

// Modulate computes the vector of every timestep and entry.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	return m.Modulation(env, p.N, family.Conditioning{
		Timesteps: timesteps, In: m.Net.Time.In, Out: m.Net.Time.Out, Add: p.Vector,
	})
}

// ModulateBlock computes what the vector adds in all residual blocks, side by side: [S, n, sum of E].
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, _ int) {
	wide := 0
	m.Net.eachResnet(func(r *resnet) { wide += r.n })
	out.Image[0] = env.Arena.Alloc(engine.F32, out.Vector.Dim(0), out.Vector.Dim(1), wide)
	at := 0
	m.Net.eachResnet(func(r *resnet) {
		env.Ops.Linear(out.Image[0].Slice(2, at, at+r.n), out.Vector, r.Time, engine.Epilogue{})
		at += r.n
	})
}

// Embed runs the first convolution over the latent and what the network reads beside it.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	mark := env.Arena.Mark()
	if !s.P.Concat.IsZero() {
		wide := layers.Scratch(env, x, s.B, x.Dim(1), m.cfg.In)
		env.Ops.Copy(wide.Slice(2, 0, x.Dim(2)), x)
		layers.Entries(env, wide.Slice(2, x.Dim(2), m.cfg.In), s.P.Concat)
		x = wide
	}
	conv3(env, picture(s, s.X), picture(s, x), m.Net.Down[0].First.Conv)
	env.Arena.Release(mark)
}

// Head normalizes and runs the last convolution.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	mark := env.Arena.Mark()
	n := layers.Scratch(env, s.X, s.X.Shape()...)
	groupNorm(env, picture(s, n), picture(s, s.X), m.Net.Norm, normEps, engine.SiLU)
	conv3(env, picture(s, out), picture(s, n), m.Net.Last)
	env.Arena.Release(mark)
}

// picture views rows [B, Y*X, C] as pixels [B, Y, X, C].
func picture(s *dit.State, rows engine.Tensor) engine.Tensor {
	return rows.Split(1, s.P.Grid.LatentY, s.P.Grid.LatentX)
}

// rows views pixels [B, Y, X, C] as rows [B, Y*X, C].
func rows(pixels engine.Tensor) engine.Tensor { return pixels.Merge(1) }
