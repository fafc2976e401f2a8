package sd3

import (
	"fmt"
	"strings"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
	"patchbay/models/weights"
)

// The control nets of Stability AI for SD3.5 large (ComfyUI comfy/cldm/dit_embedder.py): blocks over image tokens
// alone, without positions, each of which starts from the net's embedded input. The pooled vector goes through the
// model's embedder before the net's own.

// embedNet names the weights of such a net, beside the model's y_embedder.
type embedNet struct {
	Patch  *engine.Weight      `weight:"x_embedder.proj" shape:"E,C,p,p" use:"embed"`
	Time   layers.TimeEmbedder `weight:"t_embedder.mlp"`
	Vector vectorEmbedder      `weight:"y_embedder"` // of the model
	Again  struct {
		In  *engine.Weight `weight:"mlp.0" shape:"E,E"`
		Out *engine.Weight `weight:"mlp.2" shape:"E,E"`
	} `weight:"y_again"`
	Blocks []stream `weight:"transformer_blocks"`
}

// embedConfig holds the sizes of a net.
type embedConfig struct{ hidden, blocks, channels, pooled, mlpHidden int }

// embedPatch is the side of its tokens in the latent.
const embedPatch = 2

// detectEmbedder infers the sizes of a net.
func detectEmbedder(set *weights.Set, _ map[string]string) (family.Config, error) {
	c := embedConfig{
		hidden: set.Dim("x_embedder.proj.weight", 0), channels: set.Dim("x_embedder.proj.weight", 1),
		blocks: set.Count("transformer_blocks"), pooled: set.Dim("y_embedder.mlp.0.weight", 1),
		mlpHidden: set.Dim("transformer_blocks.0.mlp.fc1.weight", 0),
	}
	switch {
	case c.hidden == 0 || c.hidden%headDim != 0:
		return nil, fmt.Errorf("width %d is not a multiple of %d", c.hidden, headDim)
	case set.Dim("y_again.mlp.0.weight", 1) != c.hidden:
		return nil, fmt.Errorf("it reads pooled vectors of %d values: only those of SD3.5 large are supported, which read "+
			"what the model makes of them, %d", set.Dim("y_again.mlp.0.weight", 1), c.hidden)
	}
	return c, nil
}

func (c embedConfig) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "sd3", Width: c.hidden, Heads: c.hidden / headDim, PatchSize: embedPatch, Channels: c.channels,
		PooledDim: c.pooled, Blocks: dit.Blocks(c.blocks, dit.BlockSpec{Kind: dit.Cross}),
	}
	tags := family.Tags{Dims: map[string]int{"F": c.mlpHidden, "V": c.pooled}, Ignore: []string{"control_type"}}
	return family.Describe(set, family.Diffusion{Spec: s, Latent: format()}, tags,
		func() *embedNet { return &embedNet{Blocks: make([]stream, c.blocks)} },
		func(l family.Loaded[embedNet]) dit.Model { return &embedder{l} })
}

// embedder is such a net without its hint and outputs. It implements dit.Model; Head must not be called.
type embedder struct{ family.Loaded[embedNet] }

// Prepare embeds the pooled vectors.
func (m *embedder) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	for i := range entries {
		if n := len(entries[i].Pooled); n != 0 && n != spec.PooledDim {
			return nil, fmt.Errorf("control net for sd3: entry %d: a pooled vector of %d values, want %d", i, n, spec.PooledDim)
		}
	}
	p := &dit.Prepared{N: len(entries), Grid: grid, Entries: entries}
	p.Vector = env.Arena.Alloc(engine.F32, p.N, spec.Width)
	mark := env.Arena.Mark()
	of := env.Arena.Alloc(engine.F32, p.N, spec.Width)
	layers.MLP(env, of, layers.Pooled(env, entries, spec.PooledDim), m.Net.Vector.In, m.Net.Vector.Out, engine.SiLU)
	layers.MLP(env, p.Vector, of, m.Net.Again.In, m.Net.Again.Out, engine.SiLU)
	env.Arena.Release(mark)
	return p, nil
}

// Modulate computes the vector of every timestep and entry (time + pooled), from which comes Image [S, n, 6E] of each
// block.
func (m *embedder) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	return m.Modulation(env, p.N, family.Conditioning{
		Timesteps: timesteps, In: m.Net.Time.In, Out: m.Net.Time.Out, Add: p.Vector,
	})
}

func (m *embedder) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	out.Image[i] = layers.Modulate(env, out.Vector, m.Net.Blocks[i].Mod)
}

// Embed projects the latent's tokens, and allocates s.First for what all blocks start from.
func (m *embedder) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	if rows := s.ImageRows(); rows.Dim(1) > 0 {
		s.First = env.Arena.Alloc(rows.DType, rows.Dim(0), rows.Dim(1), rows.Dim(2))
		env.Ops.Linear(rows, x, m.Net.Patch, engine.Epilogue{})
	}
}

// Block runs block i on the rows that the first block started from.
func (m *embedder) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, w, x, of := env.Arena.Mark(), &m.Net.Blocks[i], s.ImageRows(), s.Wide
	switch {
	case s.First.IsZero():
	case i == 0:
		env.Ops.Copy(s.First, x)
	default:
		env.Ops.Copy(x, s.First)
	}
	e, mod := m.Spec().Width, s.M.Image[i].Index(0, s.Step)
	h := layers.Scratch(env, x, s.B, x.Dim(1), e)
	layers.AdaLN(env, h, x, layers.Chunk(mod, e, 0), layers.Chunk(mod, e, 1), eps)
	out, _ := layers.Attended(env, dit.Attention{Block: i, Rows: of, ImageOnly: true}, h, w.Attn.QKV, headDim, 1)
	if of.Len() > 0 {
		layers.RowLinear(env, x, out, w.Attn.Proj, layers.Chunk(mod, e, 2), of)
		layers.AdaLN(env, h, x, layers.Chunk(mod, e, 3), layers.Chunk(mod, e, 4), eps)
		w.MLP.Add(env, x, h, layers.Chunk(mod, e, 5), of)
	}
	env.Arena.Release(mark)
}

// embedders describes these nets.
func embedders() family.Control {
	// names of diffusers, and of the net's own embedder of the pooled vector, which would hide the model's
	renamed := [][2]string{
		{"pos_embed.proj.", "x_embedder.proj."},
		{"time_text_embed.timestep_embedder.linear_1.", "t_embedder.mlp.0."},
		{"time_text_embed.timestep_embedder.linear_2.", "t_embedder.mlp.2."},
		{"y_embedder.", "y_again."},
		{"time_text_embed.text_embedder.linear_1.", "y_again.mlp.0."},
		{"time_text_embed.text_embedder.linear_2.", "y_again.mlp.2."},
	}
	return family.Control{
		Kinds: "SD3.5 large of Stability AI", Forms: []family.Form{{Has: embedderMark}}, Detect: detectEmbedder,
		Names: func(key string) string {
			for _, r := range renamed {
				if part, ok := strings.CutPrefix(key, r[0]); ok {
					return r[1] + part
				}
			}
			return key
		},
		Borrows: []string{"y_embedder."},
		Rest: func(net *weights.Set) map[string][]int {
			const pooled = 2048
			e := net.Dim("x_embedder.proj.weight", 0)
			return family.Shapes(map[string][2]int{"y_embedder.mlp.0": {e, pooled}, "y_embedder.mlp.2": {e, e}})
		},
		Repeat: func(net *dit.Spec, _ dit.BlockKind, n int) int { return (net.Heads + n - 1) / n },
		Shown: func(kind int) (factor, offset float32) {
			switch kind {
			case 1: // edges
				return 255 * 0.5, 0.5
			case 2: // depths
				return -1, 1
			}
			return 1, 0
		},
	}
}

// embedderMark is a tensor that only these nets have.
const embedderMark = "transformer_blocks.0.adaLN_modulation.1.bias"
