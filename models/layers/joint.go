package layers

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// Double is a block of two streams with one attention over both: x += gate1 * out(attention(norm1(x))), then x += gate2
// * mlp(norm2(x)), the modulations being (shift, scale, gate) of the one, then of the other. W is the weights of a
// stream, D the width of a head, Eps that of the norms. QKV picks the projections to queries, keys and values, all in
// one or three, Out the one behind the attention, Norm that of queries and keys; MLP adds the second half to a stream
// whose H is normalised.
type Double[W any] struct {
	D    int
	Eps  float32
	QKV  []func(W) *engine.Weight
	Out  func(W) *engine.Weight
	Norm func(W) engine.QKNorm
	MLP  func(t Stream[W])
}

// Run computes block i, or the half of it that env.Half names, on the rows of s. Its scratch is from the arena.
func (b Double[W]) Run(env dit.Env, i int, s *dit.State, text, image Side[W]) {
	streams := Streams(env, s, text, image)
	var attended engine.Tensor
	if env.Half != dit.MLPHalf {
		qkv := Projections(env, s, streams, image.W, b.Eps, b.QKV)
		attended = Scratch(env, s.X, s.B, s.Wide.Len(), b.Out(image.W).K())
		JointAttention(env, i, s, qkv, attended, b.D, b.Norm(text.W), b.Norm(image.W))
	}
	for _, t := range streams {
		if env.Half != dit.MLPHalf {
			RowParts(env, t.X, attended.Slice(1, t.To.Start, t.To.End), t.Weights(2, b.Out), t.Of)
		}
		if env.Half != dit.AttentionHalf {
			t.Norm(env, 3, b.Eps)
			b.MLP(t)
		}
	}
}

// Projections normalises the streams of s by the first shift and scale and computes the products that picks choose side
// by side: [B, L, N] in the arena. w is the weights of any stream, which tell N.
func Projections[W any](
	env dit.Env, s *dit.State, streams []Stream[W], w W, eps float32, picks []func(W) *engine.Weight,
) engine.Tensor {
	n := 0
	for _, pick := range picks {
		n += pick(w).N()
	}
	out := Scratch(env, s.X, s.B, s.Wide.Len(), n)
	for _, t := range streams {
		t.Norm(env, 0, eps)
		mark := env.Arena.Mark()
		rows, whole, at := out.Slice(1, t.To.Start, t.To.End), Gathered(env, t.H, t.Of), 0
		for _, pick := range picks {
			t.Linear(env, rows.Slice(2, at, at+pick(w).N()), whole, pick)
			at += pick(w).N()
		}
		env.Arena.Release(mark)
	}
	return out
}

// JointAttention is the attention of block i over all rows of s, text, references and picture, with the projections qkv
// [B, L, 3*H*D] and heads of d: it writes out [B, L, H*D]. text and image are the norms of queries and keys.
func JointAttention(env dit.Env, i int, s *dit.State, qkv, out engine.Tensor, d int, text, image engine.QKNorm) {
	q, k, v := QKV(qkv, d)
	env.Attend(dit.Attention{
		Block: i, Q: q, K: k, V: v, TextNorm: text, ImageNorm: image,
		References: s.Wide.Text.Len() - OwnText(s, s.Wide), RoPE: s.RoPE, Rows: s.Wide, Out: Heads(out, d),
	})
}

// RMS is the root-mean-square norm of queries and keys with the weights q and k [D].
func RMS(q, k engine.Tensor, eps float32) engine.QKNorm {
	return engine.QKNorm{Kind: engine.RMSNorm, QScale: q, KScale: k, Eps: eps}
}

// EmbedJointRows fills the rows of s: the text and references that EmbedJoint embedded, and the latent's tokens x [B,
// li, C*p*p] times the weight image.
func EmbedJointRows(env dit.Env, s *dit.State, x engine.Tensor, image *engine.Weight) {
	Entries(env, s.TextRows(), s.P.Text.Slice(1, s.Rows.Text.Start, s.Rows.Text.End))
	EmbedImage(env, s, x, image)
}

// Timesteps returns timesteps [S][n] times factor, with n zeros behind each n of them where references are modulated as
// at timestep 0: [S][N], and N.
func Timesteps(timesteps []float32, n int, factor float32, zero bool) ([]float32, int) {
	wide := n
	if zero {
		wide = 2 * n
	}
	out := make([]float32, len(timesteps)/n*wide)
	for i, t := range timesteps {
		out[i/n*wide+i%n] = t * factor
	}
	return out, wide
}

// Guidance embeds the guidance of entries times factor, as a timestep is embedded: [n, E] f32 in the arena, zeros for
// entries without. in [H, F] reads F sinusoidal features, out is [E, H].
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
