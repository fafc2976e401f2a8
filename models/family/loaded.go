package family

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
	"patchbay/models/weights"
)

// Loaded is a model whose weights are in an N, a struct with weight tags. A family embeds it in its dit.Model.
type Loaded[N any] struct {
	Net  *N
	Held dit.Held

	spec    *dit.Spec
	options weights.Options
	mem     *weights.Loaded
	parts   *weights.Parts // nil where all held weights are in place
	build   func(Loaded[N]) dit.Model

	patch, last *engine.Weight
	shift       int
	eps         float32
}

// Tags says what the weight tags of a family mean, beyond what the spec tells: E (width), K (width of keys and values),
// D (head), C (channels), p (patch) and T (text) are sizes, E and K are split by heads, "patch" is the row order
// layers.ChannelsFirst of the last layer.
type Tags struct {
	Dims   map[string]int   // F, the hidden width of MLPs, and others
	Ignore []string         // prefixes of the names of tensors that files may have and that are not used
	Perms  map[string][]int // row orders beside "patch"
	Blocks map[string]int   // index of the first block of each list; other lists hold none; nil: every list starts at 0
}

// NewIf returns a part of a weight struct that not every model has: empty, or nil if this model does not have it.
func NewIf[T any](has bool) *T {
	if has {
		return new(T)
	}
	return nil
}

// options returns the options that load a whole model.
func (t Tags) options(s *dit.Spec) weights.Options {
	o := weights.Options{
		Model: s.Family, Units: map[string]int{"E": s.HeadDim * s.Group(), "K": s.HeadDim}, Ignore: t.Ignore,
		Dims: map[string]int{
			"E": s.Width, "K": s.Groups() * s.HeadDim, "D": s.HeadDim, "C": s.Channels, "p": s.PatchSize, "T": s.ContextDim,
		},
		Perms: map[string][]int{"patch": layers.ChannelsFirst(s.OutChannels, s.PatchSize)},
		Block: func(list string, i int) int {
			if s.Whole {
				return 0
			}
			if first, ok := t.Blocks[list]; ok || t.Blocks == nil {
				return first + i
			}
			return -1
		},
	}
	maps.Copy(o.Dims, t.Dims)
	maps.Copy(o.Perms, t.Perms)
	return o
}

// Describe completes the description of a model. net returns the empty struct of its weights, from which the numbers of
// parameters follow. Describe also sets Outline, and where they are empty HeadDim (to the width over the heads),
// OutChannels (to Channels) and Variant (to the family's name). build makes the model from its loaded weights. The
// result's Load reports missing, unexpected and misshapen tensors of the whole model in one *weights.MismatchError;
// models that Open returns have no unexpected ones.
func Describe[N any](
	set *weights.Set, d Diffusion, tags Tags, net func() *N, build func(Loaded[N]) dit.Model,
) (*Diffusion, error) {
	spec := d.Spec
	spec.HeadDim, spec.OutChannels = cmp.Or(spec.HeadDim, spec.Width/spec.Heads), cmp.Or(spec.OutChannels, spec.Channels)
	options := tags.options(&spec)
	d.Variant = cmp.Or(d.Variant, spec.Family)
	d.Declare = func() ([]weights.Declared, error) { return weights.Declare(net(), options) }
	declared, err := d.Declare()
	if err != nil {
		return nil, err
	}
	if err := count(&spec, declared); err != nil {
		return nil, err
	}
	load := func(ops engine.Ops, set *weights.Set, held dit.Held) (l Loaded[N], err error) {
		o := options
		o.Held = func(list string, i int) bool { b := o.Block(list, i); return b < 0 || held.Has(b) }
		o.Spare, o.Shelf = d.spare, true
		o.Rank, o.Ranks, o.Part, o.Parts, o.Uses = held.Rank, held.Ranks, held.Part, held.Parts, held.Uses
		if held.Stream > 0 {
			streamed := held.Streamed(len(spec.Blocks))
			o.Streams = func(block int) bool { return streamed[block] }
		}
		l = Loaded[N]{Net: net(), Held: held, spec: &spec, options: o, build: build}
		if l.mem, err = weights.Load(ops, set, l.Net, o); err == nil {
			l.parts = l.mem.Parts()
		}
		return l, err
	}
	spec.Outline = &dit.Outline{Part: outlines(func(held dit.Held) (Loaded[N], error) {
		return load(weights.Shapes(), weights.Undefined(declared), held)
	}, build)}
	d.Spec = spec
	d.unused = func() []string {
		d.spare = true
		l, err := load(weights.Shapes(), set, dit.Held{})
		if err != nil {
			return nil // Load says what is missing
		}
		return l.mem.Unused
	}
	d.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		l, err := load(ops, set, held)
		if err != nil {
			return nil, err
		}
		return build(l), nil
	}
	return &d, nil
}

// outlines returns dit.Outline.Part. Outlines that differ by their blocks alone share the shapes of all blocks.
func outlines[N any](
	load func(dit.Held) (Loaded[N], error), build func(Loaded[N]) dit.Model,
) func(dit.Held) (dit.Model, error) {
	type slice struct {
		noEmbed, noHead bool
		rank, ranks     int
	}
	var mu sync.Mutex
	known := map[slice]Loaded[N]{}
	return func(held dit.Held) (dit.Model, error) {
		mu.Lock()
		defer mu.Unlock()
		key := slice{held.NoEmbed, held.NoHead, held.Rank, held.Ranks}
		l, ok := known[key]
		if !ok {
			var err error
			l, err = load(dit.Held{NoEmbed: held.NoEmbed, NoHead: held.NoHead, Rank: held.Rank, Ranks: held.Ranks})
			if err != nil {
				return nil, err
			}
			known[key] = l
		}
		l.Held = held
		return build(l), nil
	}
}

// count sets the numbers of parameters. It refuses blocks that a tensor group divides by more numbers of units than
// dit.BlockSpec.Split has room for.
func count(s *dit.Spec, declared []weights.Declared) error {
	for _, d := range declared {
		n := d.Params()
		s.Params += n
		switch d.Use {
		case dit.ForEmbed:
			s.EmbedParams += n
		case dit.ForHead:
			s.HeadParams += n
		}
		if d.Block >= 0 {
			b := &s.Blocks[d.Block]
			b.Params += n
			for _, split := range d.Split {
				at := slices.IndexFunc(b.Split[:], func(s dit.Split) bool { return s.Units == 0 || s.Units == split.Units })
				if at < 0 {
					return fmt.Errorf("block %d of %s is split by more than %d numbers of units", d.Block, s.Family, len(b.Split))
				}
				b.Split[at].Units = split.Units
				b.Split[at].Params += split.Params
			}
		}
	}
	return nil
}

// Spec describes the whole model.
func (l *Loaded[N]) Spec() *dit.Spec { return l.spec }

// Conditioning is what the modulations of a model are computed from: a vector of every timestep, and the projections of
// it that the head and all blocks need.
type Conditioning struct {
	Timesteps []float32      // [S*N]
	Scale     float32        // of the phases of their features (layers.ScaledFeatures); 0 means 1
	Powers    bool           // the features are layers.PowerFeatures
	In, Out   *engine.Weight // make the vector from sinusoidal features, with Act after each of them
	Act       engine.Act     // ActNone means SiLU
	// Add is [n, E] or [1, E], or one such for each of S timesteps, repeated and added to the vectors before the last
	// Act; may be absent.
	Add   engine.Tensor
	Head  *engine.Weight // projects the vector to the head's modulations, mostly [2E],
	Table engine.Tensor  // or they are these rows [2, E] plus the vector before the last Act; both absent: not held
	// Shared project the vector to what all blocks read; none: blocks read the vector itself.
	Shared []*engine.Weight
}

// Modulation starts the modulations of S timesteps of n entries, or of 2n where references have their own: Head
// [S, n, 2E], and Vector [S, n, E], or the results of Shared side by side.
func (l *Loaded[N]) Modulation(env dit.Env, n int, c Conditioning) *dit.Modulation {
	s, e, m, act := len(c.Timesteps)/n, c.Out.N(), dit.NewModulation(l.spec), cmp.Or(c.Act, engine.SiLU)
	if c.Head != nil || !c.Table.IsZero() {
		wide := 2 * e
		if c.Head != nil {
			wide = c.Head.N()
		}
		m.Head = env.Arena.Alloc(engine.F32, s, n, wide)
	}
	wide := 0
	for _, w := range c.Shared {
		wide += w.N()
	}
	m.Vector = env.Arena.Alloc(engine.F32, s, n, cmp.Or(wide, e))
	mark, vec := env.Arena.Mark(), m.Vector
	if wide > 0 {
		vec = env.Arena.Alloc(engine.F32, s, n, e)
	}
	features := layers.ScaledFeatures(c.Timesteps, c.In.K(), cmp.Or(c.Scale, 1))
	if c.Powers {
		features = layers.PowerFeatures(c.Timesteps, c.In.K())
	}
	layers.MLP(env, vec, layers.Upload(env, features, s, n, c.In.K()), c.In, c.Out, act)
	add := c.Add
	if !add.IsZero() && len(add.Shape()) == 2 {
		add = add.Unsqueeze(0)
	}
	for at := 0; at < n && !add.IsZero(); at += add.Dim(1) {
		rows := vec.Slice(1, at, at+add.Dim(1))
		env.Ops.Add(rows, rows, add)
	}
	for i := 0; i < 2 && !c.Table.IsZero(); i++ {
		env.Ops.Add(m.Head.Slice(2, i*e, (i+1)*e), vec, c.Table.Slice(0, i, i+1).Unsqueeze(0))
	}
	env.Ops.Activate(vec, vec, act)
	at := 0
	for _, w := range c.Shared {
		env.Ops.Linear(m.Vector.Slice(2, at, at+w.N()), vec, w, engine.Epilogue{})
		at += w.N()
	}
	if c.Head != nil {
		env.Ops.Linear(m.Head, vec, c.Head, engine.Epilogue{})
	}
	env.Arena.Release(mark)
	return m
}

// Between returns l with the layers before and after its blocks, for Embed and Head: patch embeds the tokens of a
// latent, last makes the prediction from rows normalized with eps and modulated by two chunks, of which number shift (0
// or 1) is the shift. Models that begin or end otherwise have an Embed or a Head of their own; patch or last is nil
// then.
func (l Loaded[N]) Between(patch, last *engine.Weight, shift int, eps float32) Loaded[N] {
	l.patch, l.last, l.shift, l.eps = patch, last, shift, eps
	return l
}

// Embed projects the latent's tokens, adds their positions, if any, and copies the text rows.
func (l *Loaded[N]) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	layers.EmbedRows(env, s, x, l.patch)
}

// Head normalizes, modulates and projects the image rows.
func (l *Loaded[N]) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	layers.ModulatedHead(env, s, out, l.last, l.shift, l.eps)
}

// PrepareBlock does nothing, as joint attention needs nothing per block. Families with cross-attention have their own.
func (l *Loaded[N]) PrepareBlock(dit.Env, *dit.Prepared, int) {}

func (l *Loaded[N]) Shards() *dit.Shards {
	return l.parts.Shards(func(slots [2]engine.Buf) (dit.Model, func(unit int, yes bool)) {
		view := *l
		var open func(unit int, yes bool)
		view.Net, open = weights.View(l.parts, l.Net, l.options, slots)
		return l.build(view), open
	})
}

// Close frees the memory of the weights.
func (l *Loaded[N]) Close() { l.mem.Close() }

// Adapt returns a model that computes with the weights of l plus additions and shares l's memory. Closing it frees only
// the additions. l must stay open as long as it is used. Errors are those of weights.Adapt.
func (l *Loaded[N]) Adapt(ops engine.Ops, additions []weights.LowRank) (dit.Model, error) {
	adapted := *l
	var err error
	if adapted.Net, adapted.mem, err = weights.Adapt(ops, l.Net, l.options, additions); err != nil {
		return nil, err
	}
	return l.build(adapted), nil
}
