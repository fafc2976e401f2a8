package minimaxh3

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
	"patchbay/models/sampling"
)

// eps is that of all norms.
const eps = 1e-5

// Model is a MiniMax-H3 model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text, which it moves through the blocks of its own, and the conditions.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	frame := grid.Frame()
	for i := range entries {
		if !slices.Equal(entries[i].Pictures, entries[0].Pictures) {
			return nil, fmt.Errorf("minimaxh3: entry %d: pictures are rows %v of the text, want those of entry 0, %v", i,
				entries[i].Pictures, entries[0].Pictures)
		}
		for k := range entries[i].References {
			r := &entries[i].References[k]
			if g := spec.ReferenceGrid(r).Frame(); r.Frame > 0 && !r.Sound && (g.Y != frame.Y || g.X != frame.X) {
				return nil, fmt.Errorf("minimaxh3: entry %d: reference %d is part of the video and has frames of %d x %d tokens, "+
					"want %d x %d", i, k, g.Y, g.X, frame.Y, frame.X)
			}
		}
	}
	if err := m.rotate(env, p); err != nil {
		return nil, err
	}
	if m.Held.NoEmbed {
		return p, nil
	}
	p.Text = env.Arena.Alloc(env.DType, p.N, p.Lt, spec.Width)
	mark := env.Arena.Mark()
	m.refine(env, p)
	env.Arena.Release(mark)
	at := entries[0].Context.Rows
	for k := range entries[0].References {
		r := &entries[0].References[k]
		of, w := spec.ReferenceGrid(r), m.Net.VideoIn
		if r.Sound {
			w = m.Net.SoundIn
		}
		n := of.Tokens()
		x := layers.UploadComputed(env, func() (all []float32) {
			for i := range entries {
				all = append(all, conditionRows(spec, &entries[i].References[k])...)
			}
			return all
		}, p.N, n, w.K())
		layers.Project(env, p.Text.Slice(1, at, at+n), x, w)
		env.Arena.Release(mark)
		at += n
	}
	return p, nil
}

// conditionRows returns the tokens of a condition with its noise.
func conditionRows(spec *dit.Spec, r *dit.Reference) []float32 {
	rows := layers.ReferenceRows(spec, r)
	if r.Clean > 0 && r.Clean < 1 {
		for i, v := range sampling.NewGenerator(r.Seed).Randn(len(rows)) {
			rows[i] = r.Clean*rows[i] + (1-r.Clean)*v
		}
	}
	return rows
}

// rotate computes the rotations of all rows. The angles of an axis are its positions times the frequencies.
func (m *Model) rotate(env dit.Env, p *dit.Prepared) error {
	freqs := make([]float32, m.cfg.Frequencies)
	if !env.Arena.Measuring() {
		if err := env.Ops.Download(freqs, m.Net.Frequencies).Wait(); err != nil {
			return err
		}
	}
	rows, pairs := p.Lt+p.Grid.Tokens(), m.cfg.HeadDim/2
	p.RoPE = layers.UploadRotation(env, rows, pairs, func() layers.Rotation {
		phases := make([]float32, 0, rows*pairs)
		for _, at := range spots(m.Spec(), &p.Entries[0], p.Grid) {
			for _, axis := range at {
				for _, f := range freqs {
					phases = append(phases, float32(axis)*f)
				}
			}
			phases = append(phases, make([]float32, pairs-axes*len(freqs))...) // these do not turn
		}
		return layers.PhaseRotation(phases, pairs)
	})
	return nil
}

// refine embeds the text and moves it through its blocks, which every rank computes whole.
func (m *Model) refine(env dit.Env, p *dit.Prepared) {
	l, e := p.Entries[0].Context.Rows, m.cfg.Hidden
	if l == 0 {
		return
	}
	env.Reduce, env.Gather, env.Scatter, env.Attend = nil, nil, nil, dit.Whole(env.Ops, env.Arena)
	context := layers.Contexts(env, p.Entries, func(e dit.Entry) dit.Array { return e.Context })
	x := layers.Scratch(env, p.Text, p.N, l, e)
	layers.Project(env, x, context, m.Net.TextIn)
	t := layers.Stream{
		X: x, H: layers.Scratch(env, x, x.Shape()...), Of: dit.Rows{Text: dit.Range{End: l}}, To: dit.Range{End: l},
	}
	mod := env.Arena.Alloc(engine.F32, 1, 6*e) // shifts 0, scales the weights of the norms, gates 1
	for i := range m.Net.Refiner.Blocks {
		w := &m.Net.Refiner.Blocks[i]
		for k, norm := range []engine.Tensor{w.Norm1, w.Norm2} {
			env.Ops.Fill(layers.Chunk(mod, e, 3*k), 0)
			env.Ops.Copy(layers.Chunk(mod, e, 3*k+1), norm.Unsqueeze(0))
			env.Ops.Fill(layers.Chunk(mod, e, 3*k+2), 1)
		}
		t.Parts = []layers.Segment{{Side: w.side(), Mod: mod, Wide: t.To, Kept: t.To}}
		m.run(env, &t, dit.Attention{Rows: t.Of})
	}
	env.Ops.RMSNorm(p.Text.Slice(1, 0, l), x, m.Net.Refiner.Norm, eps)
}

// Modulate embeds the times of every modality: Vector [S, 3*R*N, M] has those of the video first, then those of text
// and sound, R of each, and each for the N entries. R is the number of different times that a modality has at once.
// Image [S, 3*R*N, 6E] of blocks is (shift, scale, gate) of the attention, then of the MLP, Head [S, 3*R*N, 2E] (shift,
// scale), all scales with the weight of their norm (layers.WeighScale).
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	at, times := moments(runs(m.Spec(), &p.Entries[0], p.Grid)), []float32(nil)
	for step := range slices.Chunk(timesteps, p.N) {
		for modality, list := range at {
			for _, moment := range list {
				for i, t := range step {
					sigma := max(t/factor, 1e-6)
					if modality == sound {
						sigma = soundSigma(sigma, p.Entries[i].SoundRatio)
					}
					times = append(times, moment.at(sigma))
				}
			}
		}
	}
	s, n := len(timesteps)/p.N, p.N*modalities*len(at[0])
	out, e := dit.NewModulation(m.Spec()), m.cfg.Hidden
	out.Vector = env.Arena.Alloc(engine.F32, s, n, m.cfg.TimeDim)
	if !m.Held.NoHead {
		out.Head = env.Arena.Alloc(engine.F32, s, n, 2*e)
	}
	mark := env.Arena.Mark()
	if m.Net.Table != nil {
		m.look(env, out.Vector.Merge(0), times)
	} else {
		f := layers.Upload(env, layers.TimestepFeatures(times, features), s, n, features)
		layers.MLP(env, out.Vector, f, m.Net.Time.In, m.Net.Time.Out, engine.SiLU)
		env.Ops.Activate(out.Vector, out.Vector, engine.SiLU)
	}
	if !m.Held.NoHead {
		env.Ops.Linear(out.Head, out.Vector, m.Net.Final.Mod, engine.Epilogue{})
		layers.WeighScale(env, out.Head.Slice(2, e, 2*e), m.Net.Final.Norm)
	}
	env.Arena.Release(mark)
	return out
}

// factor is how much larger timesteps are than sigmas.
const factor = 1000

// soundSigma returns the sigma of the sound when the video has sigma: both come from one schedule, and the sound's
// shift is ratio times the video's.
func soundSigma(sigma, ratio float32) float32 {
	if ratio == 0 {
		return sigma
	}
	return ratio * sigma / (1 + (ratio-1)*sigma)
}

// look writes the rows of the table for times, interpolated between neighbors, to y [len(times), M].
func (m *Model) look(env dit.Env, y engine.Tensor, times []float32) {
	rows, wide := m.Net.Table.Rows, m.cfg.TimeDim
	lo, hi, part := make([]int32, len(times)), make([]int32, len(times)), make([]float32, 0, len(times)*wide)
	for i, t := range times {
		at := min(max(t, 0), 1) * float32(m.cfg.Table-1)
		lo[i] = min(int32(at), int32(m.cfg.Table-2))
		hi[i] = lo[i] + 1
		part = append(part, slices.Repeat([]float32{at - float32(lo[i])}, wide)...)
	}
	next := env.Arena.Alloc(engine.F32, len(times), wide)
	minus := env.Arena.Alloc(engine.F32, 1, wide)
	env.Ops.Fill(minus, -1)
	env.Ops.Gather(y, rows, lo)
	env.Ops.Gather(next, rows, hi)
	each := func(t engine.Tensor) engine.Tensor { return t.Unsqueeze(1) }
	env.Ops.GatedAdd(each(next), each(next), minus, each(y), engine.Tensor{})
	env.Ops.GatedAdd(each(y), each(y), layers.Upload(env, part, len(times), wide), each(next), engine.Tensor{})
}

// ModulateBlock adds the modulations of block i.
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	v, e, w := out.Vector, m.cfg.Hidden, &m.Net.Blocks[i]
	mod := env.Arena.Alloc(engine.F32, v.Dim(0), v.Dim(1), 6*e)
	out.Image[i] = mod
	each := v.Dim(1) / modalities
	for k, linear := range []*engine.Weight{video: w.Mod.Video, text: w.Mod.Text, sound: w.Mod.Sound} {
		env.Ops.Linear(mod.Slice(1, k*each, (k+1)*each), v.Slice(1, k*each, (k+1)*each), linear, engine.Epilogue{})
	}
	layers.WeighScale(env, mod.Slice(2, e, 2*e), w.Norm1)
	layers.WeighScale(env, mod.Slice(2, 4*e, 5*e), w.Norm2)
}

// Embed copies the rows of text and conditions and projects the tokens of the latent.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	layers.Entries(env, s.TextRows(), s.P.Text.Slice(1, s.Rows.Text.Start, s.Rows.Text.End))
	rows, at, n := s.ImageRows(), s.Rows.Image, s.P.Grid.Y*s.P.Grid.X
	cut := min(max(n-at.Start, 0), at.Len())
	for _, part := range []struct {
		dit.Range
		by *engine.Weight
	}{{dit.Range{End: cut}, m.Net.VideoIn}, {dit.Range{Start: cut, End: at.Len()}, m.Net.SoundIn}} {
		if part.Len() > 0 {
			env.Ops.Linear(rows.Slice(1, part.Start, part.End), x.Slice(1, part.Start, part.End).Slice(2, 0, part.by.K()),
				part.by, engine.Epilogue{})
		}
	}
}
