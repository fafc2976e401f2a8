// Package sketch is the smallest possible model family. It proves that a family is one folder and one row:
// tests/family_row_test.go adds the row and draws with it. It is no published network.
//
// Text and image form one stream through blocks of modulated attention and MLP, then through blocks of a kind that no
// other family has: attention with a gate, in parallel with the MLP. CLIP-L encodes the prompts.
package sketch

import (
	"encoding/json"
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/layers"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Config holds the sizes of a sketch.
type Config struct {
	Hidden  int `json:"hidden"`
	Heads   int `json:"heads"`
	Depth   int `json:"depth"`
	Gated   int `json:"gated"` // blocks after those
	Context int `json:"context"`
}

// channels, patch and eps are the same in all sketches.
const (
	channels = 4
	patch    = 2
	eps      = 1e-6
)

// Family returns the description of the family.
func Family() family.Family {
	return family.Family{
		Name:   "sketch",
		Forms:  []family.Form{{Has: "sketch_in.weight"}},
		Detect: detect,
		Text: family.Text{
			Types:    []string{"ovis"}, // a type that ComfyUI's loader offers and no family here has
			Encoders: []family.Encoder{{Kind: "clip_l", Layout: tokenizer.CLIPL(), Form: text.Form{Norm: true}}},
			Join: func(done map[string]*text.Encoding) (dit.Entry, error) { // without the pooled vector
				return dit.Entry{Context: done["clip_l"].Context}, nil
			},
		},
		Names: weights.Names{Diffusers: []weights.Alias{{File: "transformer_blocks.*.ff", Own: "steps.*.up"}}},
		Releases: []family.Release{
			{Name: "sketch-1", Billions: 0.000344, Steps: 4, Text: 77, Entries: 2, Config: Config{
				Hidden: 96, Heads: 6, Depth: 2, Gated: 2, Context: 128,
			}},
		},
		Tiny: Config{Hidden: 96, Heads: 6, Depth: 2, Gated: 2, Context: 128},
	}
}

func detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{
		Hidden: set.Dim("sketch_in.weight", 0), Depth: set.Count("steps"), Gated: set.Count("gated"),
		Context: set.Dim("words.weight", 1), Heads: 6,
	}
	if text, ok := meta["config"]; ok {
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return nil, fmt.Errorf("sketch: config in the file's metadata: %w", err)
		}
	}
	return c, nil
}

func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "sketch", Width: c.Hidden, Heads: c.Heads, PatchSize: patch, Channels: channels, ContextDim: c.Context,
		Blocks: dit.Blocks(c.Depth+c.Gated, dit.BlockSpec{Kind: dit.Single}),
	}
	tags := family.Tags{
		Dims: map[string]int{"F": 2 * c.Hidden}, Blocks: map[string]int{"steps": 0, "gated": c.Depth},
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.SDXL(), Sampling: family.Sampling{Line: family.FlowLine, Shift: 1, Multiplier: 1000},
	}, tags, func() *net { return &net{Steps: make([]step, c.Depth), Gated: make([]gated, c.Gated)} },
		func(l family.Loaded[net]) dit.Model { return &model{l} })
}

type net struct {
	In    *engine.Weight `weight:"sketch_in" shape:"E,C*p*p" use:"embed"`
	Words *engine.Weight `weight:"words" shape:"E,T" use:"embed"`
	Time  *engine.Weight `weight:"time" shape:"2E,64"`
	Steps []step         `weight:"steps"`
	Gated []gated        `weight:"gated"`
	Out   *engine.Weight `weight:"sketch_out" shape:"C*p*p,E" use:"head"`
}

type step struct {
	QKV  *engine.Weight `weight:"qkv" shape:"3E,E" split:"rows 3E"`
	Proj *engine.Weight `weight:"proj" shape:"E,E" split:"cols E"`
	Up   *engine.Weight `weight:"up" shape:"F,E" split:"rows F"`
	Down *engine.Weight `weight:"down" shape:"E,F" split:"cols F"`
}

// gated is x += out([sigmoid(gate(h)) * attention(h), gelu(up(h))]) with h = norm(x).
type gated struct {
	QKV  *engine.Weight `weight:"qkv" shape:"3E,E" split:"rows 3E"`
	Gate *engine.Weight `weight:"gate" shape:"E,E" split:"rows E"`
	Up   *engine.Weight `weight:"up" shape:"F,E" split:"rows F"`
	Out  *engine.Weight `weight:"out" shape:"E,E+F" split:"cols E+F"`
}

type model struct{ family.Loaded[net] }

// Prepare embeds the text.
func (m *model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	p, err := layers.Begin(m.Spec(), entries, grid)
	if err != nil {
		return nil, err
	}
	d := m.Spec().HeadDim
	p.RoPE = layers.UploadRotation(env, p.Lt+grid.Tokens(), d/2, func() layers.Rotation {
		at := layers.Positions(m.Spec(), &entries[0], grid, "", 1, func(int) [4]int { return [4]int{} })
		return layers.PositionRotation([]int{0, d / 2, d / 2}, 100, at)
	})
	if !m.Held.NoEmbed {
		p.Text = env.Arena.Alloc(env.DType, p.N, p.Lt, m.Spec().Width)
		mark := env.Arena.Mark()
		layers.Project(env, p.Text, layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context }),
			m.Net.Words)
		env.Arena.Release(mark)
	}
	return p, nil
}

// PrepareBlock adds nothing.
func (m *model) PrepareBlock(dit.Env, *dit.Prepared, int) {}

// Modulate computes shift and scale of all norms.
func (m *model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	s := len(timesteps) / p.N
	out := dit.NewModulation(m.Spec())
	out.Head = env.Arena.Alloc(engine.F32, s, p.N, 2*m.Spec().Width)
	mark := env.Arena.Mark()
	f := layers.Upload(env, layers.TimestepFeatures(timesteps, 64), s, p.N, 64)
	env.Ops.Linear(out.Head, f, m.Net.Time, engine.Epilogue{})
	env.Arena.Release(mark)
	return out
}

// ModulateBlock adds nothing.
func (m *model) ModulateBlock(dit.Env, *dit.Modulation, int) {}

// Embed projects the latent's tokens and copies the text rows.
func (m *model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	layers.Entries(env, s.TextRows(), s.P.Text.Slice(1, s.Rows.Text.Start, s.Rows.Text.End))
	if s.Rows.Image.Len() > 0 {
		env.Ops.Linear(s.ImageRows(), x, m.Net.In, engine.Epilogue{})
	}
}

// Block is x += proj(attention(norm(x))), x += down(gelu(up(norm(x)))), or a gated block.
func (m *model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	if first := len(m.Net.Steps); i >= first {
		m.Net.Gated[i-first].run(env, i, s, m.Spec())
		env.Arena.Release(mark)
		return
	}
	w, mod, e, d := &m.Net.Steps[i], s.M.Head.Index(0, s.Step), m.Spec().Width, m.Spec().HeadDim
	h := layers.Scratch(env, s.X, s.B, s.Rows.Len(), e)
	qkv := layers.Scratch(env, s.X, s.B, s.Wide.Len(), w.QKV.N())
	attended := layers.Scratch(env, s.X, s.B, s.Wide.Len(), w.Proj.K())
	layers.AdaLN(env, h, s.X, layers.Chunk(mod, e, 0), layers.Chunk(mod, e, 1), eps)
	layers.ColumnLinear(env, qkv, h, w.QKV, s.Wide, engine.ActNone)
	q, k, v := layers.QKV(qkv, d, 1)
	env.Attend(dit.Attention{Block: i, Q: q, K: k, V: v, RoPE: s.RoPE, Rows: s.Wide, Out: layers.Heads(attended, d)})
	layers.RowLinear(env, s.X, attended, w.Proj, engine.Tensor{}, s.Wide)
	layers.AdaLN(env, h, s.X, layers.Chunk(mod, e, 0), layers.Chunk(mod, e, 1), eps)
	layers.FeedForward{Up: w.Up, Down: w.Down}.Add(env, s.X, h, engine.Tensor{}, s.Wide)
	env.Arena.Release(mark)
}

// run computes the block. Its caller releases what it allocates.
func (w *gated) run(env dit.Env, i int, s *dit.State, spec *dit.Spec) {
	mod, e := s.M.Head.Index(0, s.Step), spec.Width
	row := func(n int) engine.Tensor { return layers.Scratch(env, s.X, s.B, s.Wide.Len(), n) }
	h := layers.Scratch(env, s.X, s.B, s.Rows.Len(), e)
	qkv, gate, both := row(w.QKV.N()), row(w.Gate.N()), row(w.Out.K())
	attended, up := both.Slice(2, 0, w.Gate.N()), both.Slice(2, w.Gate.N(), w.Out.K())
	layers.AdaLN(env, h, s.X, layers.Chunk(mod, e, 0), layers.Chunk(mod, e, 1), eps)
	whole := layers.Gathered(env, h, s.Wide)
	env.Ops.Linear(qkv, whole, w.QKV, engine.Epilogue{})
	env.Ops.Linear(gate, whole, w.Gate, engine.Epilogue{})
	env.Ops.Linear(up, whole, w.Up, engine.Epilogue{Act: engine.GELUTanh})
	q, k, v := layers.QKV(qkv, spec.HeadDim, 1)
	env.Attend(dit.Attention{
		Block: i, Q: q, K: k, V: v, RoPE: s.RoPE, Rows: s.Wide, Out: layers.Heads(attended, spec.HeadDim),
	})
	env.Ops.ActivateMul(attended, gate, attended, engine.Sigmoid)
	layers.RowLinear(env, s.X, both, w.Out, engine.Tensor{}, s.Wide)
}

// Head projects the image rows.
func (m *model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	layers.ModulatedHead(env, s, out, m.Net.Out, 0, eps)
}
