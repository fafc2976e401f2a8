package layers

import (
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
)

// Double computes block i, which has two streams with one attention over both, on the rows of s: x += gate1 *
// out(attention(norm1(x))), then x += gate2 * mlp(norm2(x)). The modulations are (shift, scale, gate) of the attention,
// of the MLP and of a second attention, if any. d is the head dim, eps the epsilon of the norms.
func Double(env dit.Env, i int, s *dit.State, d int, eps float32, text, image *Side) {
	streams := Streams(env, i, s, text, image)
	qkv := Projections(env, s, streams, image, eps)
	attended := Scratch(env, s.X, s.B, s.Wide.Len(), image.Out.K())
	JointAttention(env, i, s, qkv, attended, d, text.Norm, image.Norm)
	var again engine.Tensor // both attentions read X before either result is added
	if w := image.Again; w != nil {
		h := s.ImageRows() // empty, if this call has none
		if s.Wide.Image.Len() > 0 {
			t := &streams[len(streams)-1]
			t.Norm(env, 6, eps)
			h = t.H
		}
		again, _ = Attended(env, dit.Attention{
			Block: i, Index: 1, TextNorm: w.Norm, ImageNorm: w.Norm, Rows: s.Wide.ImageOnly(), ImageOnly: true,
		}, h, w.QKV[0], d, 1)
	}
	for _, t := range streams {
		w := t.Parts[0]
		if w.Out != nil {
			t.AddOut(env, attended.Slice(1, t.To.Start, t.To.End))
		}
		if w.Again != nil {
			RowLinear(env, t.X, again, w.Again.Out, Chunk(w.Mod, t.X.Dim(2), 8), t.Of)
		}
		if w.Up != nil {
			t.Norm(env, 3, eps)
			t.AddMLP(env)
		}
	}
}

// Single computes block i, which has one stream with attention and MLP in parallel (Parallel).
func Single(env dit.Env, i int, s *dit.State, d int, eps float32, w *Side) {
	a := jointAttention(i, s, w.Norm, w.Norm)
	Parallel(env, OneStream(env, i, s, w), a, d, eps, w)
}

// Parallel computes x += gate * out([attention(norm(x)), gelu(up(norm(x)))]), or silu(gate(norm(x))) * up(norm(x)) for
// the latter where w has a Gate. Where w has a Down, it reads the columns of the MLP and out those of the attention.
// Both results are written into one buffer, so nothing needs to be concatenated. a is the attention without its
// tensors, d the head dim.
func Parallel(env dit.Env, t Stream, a dit.Attention, d int, eps float32, w *Side) {
	t.Norm(env, 0, eps)
	b, l, e, f := t.X.Dim(0), t.Of.Len(), w.QKV[0].N()*len(w.QKV)/3, w.Up.N() // E and F, or this rank's shares of them
	qkv, both := Scratch(env, t.X, b, l, 3*e), Scratch(env, t.X, b, l, e+f)
	mark, attended, up := env.Arena.Mark(), both.Slice(2, 0, e), both.Slice(2, e, e+f)
	var gate engine.Tensor
	if w.Gate != nil {
		gate = Scratch(env, t.X, b, l, f)
	}
	whole, at := Gathered(env, t.H, t.Of), 0
	for _, part := range w.QKV {
		env.Ops.Linear(qkv.Slice(2, at, at+part.N()), whole, part, engine.Epilogue{})
		at += part.N()
	}
	if w.Gate == nil {
		env.Ops.Linear(up, whole, w.Up, engine.Epilogue{Act: engine.GELUTanh})
	} else {
		env.Ops.Linear(gate, whole, w.Gate, engine.Epilogue{})
		env.Ops.Linear(up, whole, w.Up, engine.Epilogue{})
		env.Ops.ActivateMul(up, gate, up, engine.SiLU)
	}
	env.Arena.Release(mark)
	a.Q, a.K, a.V = QKV(qkv, d, 1)
	a.Out = Heads(attended, d)
	env.Attend(a)
	t.add(env, both, 2, func(w *Side) []*engine.Weight {
		if w.Down == nil {
			return []*engine.Weight{w.Out}
		}
		return []*engine.Weight{w.Out, w.Down}
	})
}

// Projections normalizes the streams of s with the first shift and scale and computes their queries, keys and values:
// [B, L, N] in the arena. w is the Side of any stream and determines N.
func Projections(env dit.Env, s *dit.State, streams []Stream, w *Side, eps float32) engine.Tensor {
	n := 0
	for _, w := range w.QKV {
		n += w.N()
	}
	out := Scratch(env, s.X, s.B, s.Wide.Len(), n)
	// The image first: the block before has just added to its rows, which backends may normalize in the same pass, and the
	// text beside them.
	for _, t := range slices.Backward(streams) {
		t.Norm(env, 0, eps)
	}
	for _, t := range slices.Backward(streams) {
		mark := env.Arena.Mark()
		rows, whole, at := out.Slice(1, t.To.Start, t.To.End), Gathered(env, t.H, t.Of), 0
		for k, part := range w.QKV {
			to := at + part.N()
			t.linear(env, rows.Slice(2, at, to), whole, engine.ActNone, func(w *Side) *engine.Weight { return w.QKV[k] })
			at = to
		}
		env.Arena.Release(mark)
	}
	return out
}

// Attended runs the attention a, which lacks its tensors, over rows that all ranks of a tensor group compute. h
// [B, l, E] holds those that this rank keeps, normalized; w projects them to queries, keys and values with heads of
// width d, g query heads per key head. The result [B, L, H*D] is in the arena, and so is scratch [B, L, (H+2*H/g)*D],
// which is free for reuse.
func Attended(
	env dit.Env, a dit.Attention, h engine.Tensor, w *engine.Weight, d, g int,
) (out, scratch engine.Tensor) {
	l := a.Rows.Len()
	qkv := Scratch(env, h, h.Dim(0), l, w.N())
	out = Scratch(env, h, h.Dim(0), l, w.N()*g/(g+2))
	if l > 0 {
		ColumnLinear(env, qkv, h, w, a.Rows, engine.ActNone)
	}
	a.Q, a.K, a.V = QKV(qkv, d, g)
	a.Out = Heads(out, d)
	env.Attend(a)
	return out, qkv
}

// JointAttention runs the attention of block i over all rows of s (text, references, image), given their projections
// qkv [B, L, 3*H*D] with heads of width d, and writes out [B, L, H*D]. text and image are the norms of queries and
// keys.
func JointAttention(env dit.Env, i int, s *dit.State, qkv, out engine.Tensor, d int, text, image engine.QKNorm) {
	a := jointAttention(i, s, text, image)
	a.Q, a.K, a.V = QKV(qkv, d, 1)
	a.Out = Heads(out, d)
	env.Attend(a)
}

// jointAttention is the attention of block i over all rows of s without its tensors.
func jointAttention(i int, s *dit.State, text, image engine.QKNorm) dit.Attention {
	return dit.Attention{
		Block: i, TextNorm: text, ImageNorm: image, References: s.Wide.Text.Len() - OwnText(s, s.Wide), RoPE: s.RoPE,
		Rows: s.Wide,
	}
}

// RMS returns the root-mean-square norm of queries and keys with weights q and k [D].
func RMS(q, k engine.Tensor, eps float32) engine.QKNorm {
	return engine.QKNorm{Kind: engine.RMSNorm, QScale: q, KScale: k, Eps: eps}
}

// Timesteps returns the timesteps [S][n] of the entries of p times factor as [S][N], and N. Where method modulates
// references as at timestep 0 (AtZero), N is 2n and each n timesteps are followed by n zeros; else N is n.
func Timesteps(spec *dit.Spec, p *dit.Prepared, timesteps []float32, factor float32, method string) ([]float32, int) {
	if method == AtZero && spec.ReferenceTokens(&p.Entries[0]) > 0 {
		return times(timesteps, factor, p.N, 2*p.N), 2 * p.N
	}
	return times(timesteps, factor, p.N, p.N), p.N
}

// BesideZero returns timesteps [S][n] times factor as [S][2n]: each n timesteps are followed by n zeros.
func BesideZero(timesteps []float32, factor float32, n int) []float32 {
	return times(timesteps, factor, n, 2*n)
}

func times(timesteps []float32, factor float32, n, wide int) []float32 {
	out := make([]float32, len(timesteps)/n*wide)
	for i, t := range timesteps {
		out[i/n*wide+i%n] = t * factor
	}
	return out
}

// Guidance embeds the guidance of entries times factor, as a timestep is embedded: [n, E] f32 in the arena, zeros for
// entries without one. in [H, F] reads F sinusoidal features, out is [E, H].
func Guidance(env dit.Env, entries []dit.Entry, factor float32, in, out *engine.Weight) engine.Tensor {
	g := make([]float32, len(entries))
	for i, e := range entries {
		if e.Guidance != nil {
			g[i] = *e.Guidance * factor
		}
	}
	y := env.Arena.Alloc(engine.F32, len(entries), out.N())
	mark := env.Arena.Mark()
	MLP(env, y, Upload(env, TimestepFeatures(g, in.K()), len(entries), in.K()), in, out, engine.SiLU)
	env.Arena.Release(mark)
	for i, e := range entries {
		if e.Guidance == nil {
			env.Ops.Fill(y.Slice(0, i, i+1), 0)
		}
	}
	return y
}
