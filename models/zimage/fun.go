package zimage

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/layers"
	"patchbay/models/weights"
)

// The Fun control nets of alibaba-pai for Z-Image (ComfyUI comfy/ldm/lumina/controlnet.py and
// comfy_extras/nodes_model_patch.py): the hint goes through blocks like the model's. The model's image rows are added
// to it as they are before the model's first block (unless refines is false) and before its first block of text and
// image. After some blocks of the model, a projection of the net's state is added to the model's image rows.

// funHint names the layer that reads the hint.
const funHint = "control_all_x_embedder.2-1"

// funNet names the tensors of a Fun net.
type funNet struct {
	Hint     *engine.Weight `weight:"control_all_x_embedder.2-1" shape:"E,H*p*p"`
	Refiners []funBlock     `weight:"control_noise_refiner"`
	Layers   []funBlock     `weight:"control_layers"`
}

// funBlock is a block that may read the rows of the model (Before) and may have an output (After).
type funBlock struct {
	Of     modulated `weight:""`
	Before *before   `weight:""`
	After  *after    `weight:""`
}

type before struct {
	Linear *engine.Weight `weight:"before_proj" shape:"E,E"`
}

type after struct {
	Linear *engine.Weight `weight:"after_proj" shape:"E,E"`
}

// funConfig holds the sizes of a net.
type funConfig struct {
	hidden, headDim, mlpHidden int
	hint                       int // channels: a latent, or a latent, a mask and a latent to be inpainted
	refiners, layers           int
	refines                    bool // refiners read the model and have outputs; else they refine the hint alone
	// broken: training left the refiners out and ran the layers in their place, the first one for the first refiner,
	// all others for the second.
	broken bool
}

// funStep is one block of a net in the order of execution.
type funStep struct {
	list string // name of its list of tensors
	i    int    // index in the list
	// feeds is the model's block after which the output is added, counted from the first block of the image (refines)
	// or from the first of text and image; -1: none.
	feeds   int
	refines bool
}

// steps returns the blocks in the order of execution. ComfyUI assumes 30 blocks of the model, whatever it has.
func (c funConfig) steps() (out []funStep) {
	refiners, every := c.refiners, int(math.RoundToEven(30/float64(c.layers)))
	list := "control_noise_refiner"
	if c.broken {
		refiners, list = c.layers, "control_layers"
	}
	for i := range refiners {
		s := funStep{list: list, i: i, feeds: i, refines: true}
		if !c.refines || i >= c.refiners {
			s.feeds = -1
		}
		out = append(out, s)
	}
	for i := range c.layers {
		out = append(out, funStep{list: "control_layers", i: i, feeds: i * every})
	}
	return out
}

// net returns the empty struct of the weights.
func (c funConfig) net() *funNet {
	n := &funNet{Refiners: make([]funBlock, c.refiners), Layers: make([]funBlock, c.layers)}
	for k, list := range [][]funBlock{n.Refiners, n.Layers} {
		joins := k > 0 || c.refines
		for i := range list {
			list[i].Of.Plain = &plainMod{}
			list[i].Before, list[i].After = family.NewIf[before](joins && i == 0), family.NewIf[after](joins)
		}
	}
	return n
}

// detectFun infers the sizes of a net. Only the values of a tensor tell whether it is broken.
func detectFun(set *weights.Set) (funConfig, error) {
	const refiner = "control_noise_refiner.0.after_proj.weight"
	c := funConfig{
		hidden: set.Dim(funHint+".weight", 0), hint: set.Dim(funHint+".weight", 1) / 4,
		headDim:   set.Dim("control_layers.0.attention.q_norm.weight", 0),
		mlpHidden: set.Dim("control_layers.0.feed_forward.w1.weight", 0),
		refiners:  set.Count("control_noise_refiner"), layers: set.Count("control_layers"), refines: set.Has(refiner),
	}
	channels := latent.FLUX().Channels
	switch {
	case !slices.Contains([]int{3, 6, 15}, c.layers) || c.refiners != 2:
		return c, fmt.Errorf("a Fun net for Z-Image of %d layers behind %d that refine: want 3, 6 or 15 behind 2", c.layers,
			c.refiners)
	case c.hint != channels && c.hint != 2*channels+1:
		return c, fmt.Errorf("a Fun net for Z-Image whose hint has %d channels: want %d, or %d with a mask and a picture to "+
			"be filled in", c.hint, channels, 2*channels+1)
	case c.headDim == 0 || c.hidden == 0 || c.hidden%c.headDim != 0:
		return c, fmt.Errorf("a Fun net for Z-Image: width %d is not a multiple of the head dim %d", c.hidden, c.headDim)
	}
	if t, ok := set.Get(refiner); ok && c.layers == 15 {
		c.broken = zeros(t)
	}
	return c, nil
}

// zeros reports whether all values of a tensor are zero.
func zeros(t weights.Stored) bool {
	const part = 1 << 16
	for lo := 0; lo < t.Len(); lo += part {
		if len(bytes.Trim(t.Elements(lo, min(lo+part, t.Len())), "\x00")) > 0 {
			return false
		}
	}
	return true
}

// describeFun describes the Fun net of a file and returns how many channels its hint has.
func describeFun(set *weights.Set) (*family.Diffusion, int, error) {
	set, err := weights.Renamed(set, funAliases())
	if err != nil {
		return nil, 0, fmt.Errorf("a Fun net for Z-Image: %w", err)
	}
	c, err := detectFun(set)
	if err != nil {
		return nil, 0, err
	}
	s := dit.Spec{
		Family: "zimage", Width: c.hidden, Heads: c.hidden / c.headDim, PatchSize: 2, Channels: latent.FLUX().Channels,
		Follows: true,
		Blocks:  dit.Blocks(len(c.steps()), dit.BlockSpec{Kind: dit.Cross}),
	}
	first := map[string]int{} // without the refiners of a broken net, whose layers run twice
	for k, step := range c.steps() {
		first[step.list] = k - step.i
	}
	tags := family.Tags{Dims: map[string]int{"F": c.mlpHidden, "M": features, "H": c.hint}, Blocks: first}
	d, err := family.Describe(set, family.Diffusion{Spec: s}, tags, c.net, func(l family.Loaded[funNet]) dit.Model {
		return &Fun{l, c.hint, c.steps()}
	})
	return d, c.hint, err
}

// funAliases are the tensor names of files in the layout of diffusers.
func funAliases() (list []weights.Alias) {
	for _, l := range []string{"control_layers.*.attention.", "control_noise_refiner.*.attention."} {
		list = append(append(list, apart(l)...),
			weights.Alias{File: l + "norm_q", Own: l + "q_norm"}, weights.Alias{File: l + "norm_k", Own: l + "k_norm"})
	}
	return list
}

// Fun is a Fun control net. It implements dit.Follower; Head must not be called.
type Fun struct {
	family.Loaded[funNet]
	hint  int
	steps []funStep
}

// Prepare embeds the hints of all entries, [n, Li, E]. It returns an error for hints of another size than the grid's.
func (m *Fun) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	n, li, cols := len(entries), grid.Tokens(), m.Net.Hint.K()
	p := &dit.Prepared{N: n, Grid: grid, Hint: env.Arena.Alloc(env.DType, n, li, m.Spec().Width)}
	mark := env.Arena.Mark()
	x, err := layers.Hints(env, "Fun net for Z-Image", entries, li, cols)
	if err != nil {
		return nil, err
	}
	by := env.Arena.Alloc(engine.F32, n, li, cols)
	env.Ops.Copy(by.Split(2, 4, m.hint), x.Split(2, m.hint, 4).Transpose(2, 3)) // as in Model.Embed
	layers.Project(env, p.Hint, by, m.Net.Hint)
	env.Arena.Release(mark)
	return p, nil
}

// Modulate only makes room: Follow brings the embedded timestep.
func (m *Fun) Modulate(dit.Env, *dit.Prepared, []float32) *dit.Modulation {
	return dit.NewModulation(m.Spec())
}

func (m *Fun) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	m.block(i).Of.modulate(env, out, i)
}

func (m *Fun) Follow(s, base *dit.State) {
	lt, li := base.Wide.Text.Len(), s.Wide.Image.Len()
	s.RoPE = engine.RoPE{Cos: base.RoPE.Cos.Slice(0, lt, lt+li), Sin: base.RoPE.Sin.Slice(0, lt, lt+li)}
	s.M.Vector = base.M.Vector.Slice(0, base.Step, base.Step+1)
}

func (m *Fun) Feeds(base *dit.Spec) [][]int {
	out, first := make([][]int, len(m.steps)), 0
	for base.Blocks[first].Kind == dit.Cross {
		first++
	}
	for k, step := range m.steps {
		b := step.feeds
		if !step.refines {
			b += first
		}
		if step.feeds >= 0 && b < len(base.Blocks) {
			out[k] = []int{b}
		}
	}
	return out
}

// Embed fills the image rows with the hint.
func (m *Fun) Embed(env dit.Env, s *dit.State, _ engine.Tensor) {
	layers.Entries(env, s.ImageRows(), s.P.Hint.Slice(1, s.Rows.Image.Start, s.Rows.Image.End))
}

// Join implements dit.Follower: x = before(x) + the model's rows.
func (m *Fun) Join(env dit.Env, k int, s *dit.State, rows func() engine.Tensor) {
	b, x := m.block(k), s.ImageRows()
	if b.Before == nil {
		return
	}
	mark, base := env.Arena.Mark(), rows()
	if x.Dim(1) > 0 {
		h := layers.Scratch(env, x, x.Dim(0), x.Dim(1), x.Dim(2))
		env.Ops.Linear(h, x, b.Before.Linear, engine.Epilogue{Residual: base})
		env.Ops.Copy(x, h)
	}
	env.Arena.Release(mark)
}

// Block runs block i on the image rows.
func (m *Fun) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	m.block(i).Of.Block.run(env, s.X, s.M.Image[i].Index(0, s.Step), m.Spec(),
		dit.Attention{Block: i, RoPE: s.RoPE, Rows: s.Wide, ImageOnly: true})
}

func (m *Fun) Output(env dit.Env, k int, s *dit.State, out, gate engine.Tensor) {
	if out.Dim(1) > 0 {
		env.Ops.Linear(out, s.ImageRows(), m.block(k).After.Linear, engine.Epilogue{Gate: gate})
	}
}

// block returns what runs as block k.
func (m *Fun) block(k int) *funBlock {
	step := m.steps[k]
	if step.list == "control_layers" {
		return &m.Net.Layers[step.i]
	}
	return &m.Net.Refiners[step.i]
}
