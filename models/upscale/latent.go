package upscale

import (
	"encoding/json"
	"errors"
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/weights"
)

// Latents is a network that enlarges the latent of a video, in space, in time or both (LTX-2: arXiv:2601.03233;
// ComfyUI comfy/ldm/lightricks/latent_upsampler.py): residual blocks over frames, a convolution whose channels become
// pixels or frames, and residual blocks again. It reads latents that no autoencoder has normalised. Beyond the API of
// Model it needs all frames at once, in f32: its norms are over the whole video.
type Latents struct {
	Config LatentConfig
	net    latentNet
	loaded *weights.Loaded
}

// LatentConfig is what a file tells about such a network.
type LatentConfig struct {
	Channels int // of a latent
	Width    int // channels between layers
	Blocks   int // residual blocks on each side
	Frames   int // by how much the number of frames grows; the first one is left out if it does
	// Up and Down are by how much the sides grow, Up/Down. Where Down is above 1 the larger picture is blurred and only
	// every so many-th pixel of it is left. Ratio says that the file spells it so, whatever Down is.
	Up, Down int
	Ratio    bool
}

// latentAnchor is the name by which ComfyUI recognizes these networks.
const latentAnchor = "post_upsample_res_blocks.0.conv2.bias"

// latentRatios are the factors that files name, for each number of pixels beside each other that a convolution makes.
func latentRatios() map[int]map[float64]int {
	return map[int]map[float64]int{2: {2: 1}, 3: {0.75: 4, 1.5: 2}, 4: {4: 1}}
}

// InferLatents derives the configuration from names and shapes in a file, and from config, the JSON of the metadata
// entry "config", what these do not say: 3/2 or 3/4. It returns ErrUnknown for files that hold no such network, and an
// error that says what they hold for those of other families.
func InferLatents(set *weights.Set, config []byte) (LatentConfig, error) {
	const first, flat, ratio = "initial_conv.weight", "upsampler.0.weight", "upsampler.conv.weight"
	switch {
	case set.Has("blocks.0.block.0.conv.weight") && set.Has("in_conv.conv.weight"),
		set.Has("up.0.block.0.conv1.conv.weight"):
		return LatentConfig{}, errors.New("looks like one of another video model, with blocks around a single upsampling: " +
			"such networks are not supported")
	case !set.Has(latentAnchor) || !set.Has(first):
		return LatentConfig{}, ErrUnknown
	}
	c := LatentConfig{
		Channels: set.Dim(first, 1), Width: set.Dim(first, 0), Blocks: set.Count("res_blocks"), Frames: 1, Up: 1, Down: 1,
		Ratio: set.Has(ratio),
	}
	const overFrames = 5 // dimensions of a convolution over frames
	t, ok := set.Get(first)
	if !ok || len(t.Shape) != overFrames || c.Width < 1 || c.Width%latentGroups != 0 {
		return c, fmt.Errorf("%s is %v: want a convolution over frames to a multiple of %d channels", first, t.Shape,
			latentGroups)
	}
	name := flat
	if c.Ratio {
		name = ratio
	}
	t, _ = set.Get(name)
	made := set.Dim(name, 0) / c.Width // pixels and frames of one
	switch moves := len(t.Shape) == overFrames; {
	case moves && made == 8:
		c.Frames, c.Up = 2, 2
	case moves && made == 2:
		c.Frames = 2
	case !moves && (made == 4 || made == 9 || made == 16):
		for c.Up*c.Up < made {
			c.Up++
		}
	default:
		return c, fmt.Errorf("%s is %v: want 2 or 8 times %d channels over frames, or 4, 9 or 16 times within them", name,
			t.Shape, c.Width)
	}
	file := struct {
		Scale float64 `json:"spatial_scale"`
	}{map[int]float64{1: 1, 2: 2, 3: 1.5, 4: 4}[c.Up]}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &file); err != nil {
			return c, fmt.Errorf("config in the metadata: %w", err)
		}
	}
	if c.Ratio {
		if c.Down, ok = latentRatios()[c.Up][file.Scale]; !ok {
			return c, fmt.Errorf("spatial_scale is %g in the metadata's config, %s makes %d pixels of one: want 2 for 4, "+
				"1.5 or 0.75 for 9, 4 for 16", file.Scale, name, made)
		}
	}
	return c, nil
}

// Size returns the frames, rows and columns of what a latent becomes.
func (c LatentConfig) Size(t, y, x int) (frames, rows, columns int) {
	return t*c.Frames - (c.Frames - 1), (c.Up*y-1)/c.Down + 1, (c.Up*x-1)/c.Down + 1
}

type latentNet struct {
	In     overFrames    `weight:"initial_conv"`
	Norm   groupNorm     `weight:"initial_norm"`
	Before []latentBlock `weight:"res_blocks"`
	Up     *withinFrames `weight:""` // exactly one of Up and Over is set
	Over   *overFrames   `weight:"up"`
	After  []latentBlock `weight:"post_upsample_res_blocks"`
	Out    overFrames    `weight:"final_conv"`
}

type withinFrames struct {
	Conv *engine.Weight `weight:"up,conv" shape:"U,W,3,3"`
}

// latentBlock is silu(x + norm2(conv2(silu(norm1(conv1(x)))))).
type latentBlock struct {
	Conv1 overFrames `weight:"conv1"`
	Norm1 groupNorm  `weight:"norm1"`
	Conv2 overFrames `weight:"conv2"`
	Norm2 groupNorm  `weight:"norm2"`
}

type groupNorm struct {
	Weight engine.Tensor `weight:"weight" shape:"W"`
	Bias   engine.Tensor `weight:"bias" shape:"W"`
}

// overFrames is a convolution over a frame and those before and after it, with zeros around a video.
type overFrames struct {
	sizes
	Now    *engine.Weight `weight:"now,conv" shape:"o,i,3,3"`
	Before *engine.Weight `weight:"before,conv,nobias" shape:"o,i,3,3"`
	After  *engine.Weight `weight:"after,conv,nobias" shape:"o,i,3,3"`
}

// sizes are the channels of a convolution by the names in its tags.
type sizes map[string]int

// Sizes implements weights.Sized.
func (s sizes) Sizes() map[string]int { return s }

// latentGroups and latentEps are those of the norms.
const (
	latentGroups = 32
	latentEps    = 1e-5
)

// OpenLatents loads the network in set; config is that of InferLatents, whose errors it returns. The caller closes the
// result.
func OpenLatents(ops engine.Ops, set *weights.Set, config []byte) (*Latents, error) {
	c, err := InferLatents(set, config)
	if err != nil {
		return nil, err
	}
	if set, err = framesApart(set); err != nil {
		return nil, err
	}
	between := func(i, o int) overFrames { return overFrames{sizes: sizes{"i": i, "o": o}} }
	m := &Latents{Config: c, net: latentNet{
		In: between(c.Channels, c.Width), Out: between(c.Width, c.Channels),
		Before: make([]latentBlock, c.Blocks), After: make([]latentBlock, c.Blocks),
	}}
	for i := range c.Blocks {
		for _, b := range []*latentBlock{&m.net.Before[i], &m.net.After[i]} {
			b.Conv1, b.Conv2 = between(c.Width, c.Width), between(c.Width, c.Width)
		}
	}
	opt := weights.Options{
		Model: "latent upscale model", Ignore: []string{"upsampler.blur_down.kernel"},
		Dims: map[string]int{"W": c.Width, "U": c.Up * c.Up * c.Width},
	}
	if c.Frames > 1 {
		up := between(c.Width, c.Frames*c.Up*c.Up*c.Width)
		m.net.Over = &up
	} else {
		m.net.Up = &withinFrames{}
	}
	m.loaded, err = weights.Load(ops, set, &m.net, opt)
	return m, err
}

// framesApart returns the tensors with those of a convolution over frames apart.
func framesApart(set *weights.Set) (*weights.Set, error) {
	out := map[string]weights.Stored{}
	over := map[string]bool{}
	rename := func(module string) string {
		if module == "upsampler.0" || module == "upsampler.conv" {
			return "up"
		}
		return module
	}
	cut := func(name string) (module, kind string) {
		for i := len(name) - 1; i >= 0; i-- {
			if name[i] == '.' {
				return rename(name[:i]), name[i+1:]
			}
		}
		return "", name
	}
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		module, kind := cut(name)
		if kind != "weight" || len(t.Shape) != 5 {
			continue
		}
		over[module] = true
		for i, as := range []string{"before", "now", "after"} {
			if t.Shape[2] != 3 {
				return nil, fmt.Errorf("%s is %v: want three taps over frames", name, t.Shape)
			}
			tap, err := t.Tap(i)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out[module+"."+as+".weight"] = tap
		}
	}
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		module, kind := cut(name)
		switch {
		case over[module] && kind == "bias":
			out[module+".now.bias"] = t
		case !over[module] || kind != "weight":
			out[module+"."+kind] = t
		}
	}
	return weights.FromMap(out), nil
}

// Close frees the memory of the weights.
func (m *Latents) Close() { m.loaded.Close() }

// Bytes returns the memory of the weights if the backend reports it.
func (m *Latents) Bytes() int64 { return m.loaded.Bytes() }

// Upscale enlarges a latent [T, Y, X, C] to what Size says. Errors: values of the wrong number, and those of Check, the
// device and memory allocation.
func (m *Latents) Upscale(env dit.TaskEnv, latent []float32, t, y, x int) ([]float32, error) {
	if t < 1 || y < 1 || x < 1 || len(latent) != t*y*x*m.Config.Channels {
		return nil, fmt.Errorf("upscale: %d values for a latent [%d, %d, %d, %d]", len(latent), t, y, x, m.Config.Channels)
	}
	run := func(w *walk) (engine.Tensor, error) {
		in := w.frames(t, y, x, m.Config.Channels)
		w.ops.Upload(in, latent)
		return m.walk(w, in)
	}
	size := &walk{ops: engine.NewRecorder(), arena: engine.NewMeasuringArena("latent upscale")}
	if _, err := run(size); err != nil {
		return nil, err
	}
	arena, err := env.Take(size.arena.Peak())
	if err != nil {
		return nil, err
	}
	done, err := run(&walk{ops: env.Ops, arena: arena, check: env.Check})
	if err != nil {
		return nil, err
	}
	out := make([]float32, done.Len())
	return out, env.Ops.Download(out, done).Wait()
}

// frames allocates [T, Y, X, C].
func (w *walk) frames(t, y, x, c int) engine.Tensor { return w.arena.Alloc(engine.F32, t, y, x, c) }

// walk computes the network.
func (m *Latents) walk(w *walk, in engine.Tensor) (engine.Tensor, error) {
	c, n := m.Config, &m.net
	t, y, x := in.Dim(0), in.Dim(1), in.Dim(2)
	frames, rows, columns := c.Size(t, y, x)
	out, large := w.frames(frames, rows, columns, c.Channels), w.frames(t*c.Frames, rows, columns, c.Width)
	mark := w.arena.Mark()
	small := w.frames(t, y, x, c.Width)
	n.In.walk(w, small, in)
	n.Norm.walk(w, small, engine.SiLU)
	if err := blocks(w, small, n.Before); err != nil {
		return out, err
	}
	wide := w.frames(t, y, x, c.Frames*c.Up*c.Up*c.Width)
	if n.Over != nil {
		n.Over.walk(w, wide, small)
	} else {
		w.ops.Conv2D(wide, small, n.Up.Conv, same())
	}
	if c.Down == 1 {
		w.spread(large, wide, c.Frames, c.Up)
	} else {
		w.blurred(large, wide, c)
	}
	w.arena.Release(mark)
	large = large.Slice(0, c.Frames-1, t*c.Frames)
	if err := blocks(w, large, n.After); err != nil {
		return out, err
	}
	n.Out.walk(w, out, large)
	return out, nil
}

// blocks computes residual blocks in place.
func blocks(w *walk, x engine.Tensor, all []latentBlock) error {
	mark := w.arena.Mark()
	defer w.arena.Release(mark)
	shape := x.Shape()
	h, g := w.frames(shape[0], shape[1], shape[2], shape[3]), w.frames(shape[0], shape[1], shape[2], shape[3])
	for i := range all {
		if err := w.step(); err != nil {
			return err
		}
		b := &all[i]
		b.Conv1.walk(w, h, x)
		b.Norm1.walk(w, h, engine.SiLU)
		b.Conv2.walk(w, g, h)
		b.Norm2.walk(w, g, engine.ActNone)
		w.ops.Add(x, x, g)
		w.ops.Activate(x, x, engine.SiLU)
	}
	return nil
}

// same are the options of a 3x3 convolution that keeps the size.
func same() engine.ConvArgs {
	return engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Left: 1, Right: 1, Top: 1, Bottom: 1}
}

// walk writes the convolution of x to y.
func (c *overFrames) walk(w *walk, y, x engine.Tensor) {
	args, last := same(), x.Dim(0)-1
	w.ops.Conv2D(y, x, c.Now, args)
	if last == 0 {
		return
	}
	args.Residual = y.Slice(0, 1, last+1)
	w.ops.Conv2D(args.Residual, x.Slice(0, 0, last), c.Before, args)
	args.Residual = y.Slice(0, 0, last)
	w.ops.Conv2D(args.Residual, x.Slice(0, 1, last+1), c.After, args)
}

// walk normalizes x in place, over all frames.
func (n *groupNorm) walk(w *walk, x engine.Tensor, act engine.Act) {
	mark := w.arena.Mark()
	stats, all := w.arena.Alloc(engine.F64, 1, latentGroups, 2), x.Merge(0).Unsqueeze(0)
	w.ops.GroupNormStats(stats, all, latentGroups)
	w.ops.GroupNormApply(all, all, stats, n.Weight, n.Bias, x.Len()/latentGroups, latentEps, act)
	w.arena.Release(mark)
}

// spread moves the channels of x, ordered (channel, frame, row, column), to the frames and pixels of y.
func (w *walk) spread(y, x engine.Tensor, frames, side int) {
	t, rows, columns := x.Dim(0), x.Dim(1), x.Dim(2)
	channels := x.Split(3, y.Dim(3), frames*side*side)
	for i := range frames * side * side {
		part := y.Split(0, t, frames).Index(1, i/(side*side)).Split(1, rows, side).Index(2, i/side%side)
		w.ops.Copy(part.Split(2, columns, side).Index(3, i%side), channels.Index(4, i))
	}
}

// blurred writes every c.Down-th pixel of what spread makes of x to y, blurred by the binomial kernel of five pixels a
// side.
func (w *walk) blurred(y, x engine.Tensor, c LatentConfig) {
	const reach = 2
	t, rows, columns, channels := y.Dim(0), y.Dim(1), y.Dim(2), y.Dim(3)
	mark := w.arena.Mark()
	defer w.arena.Release(mark)
	kernel := []float32{1. / 16, 4. / 16, 6. / 16, 4. / 16, 1. / 16}
	gates := make([]engine.Tensor, len(kernel))
	for i, v := range kernel {
		gates[i] = w.constant(channels, v)
	}
	for f := range t { // one frame at a time
		mark := w.arena.Mark()
		all := w.frames(1, c.Down*rows+2*reach, c.Down*columns+2*reach, channels)
		w.ops.Fill(all, 0)
		high, wide := c.Up*x.Dim(1), c.Up*x.Dim(2)
		w.spread(all.Slice(1, reach, reach+high).Slice(2, reach, reach+wide), x.Slice(0, f, f+1), 1, c.Up)
		thin := w.frames(1, rows, all.Dim(2), channels)
		w.summed(thin, gates, func(i int) engine.Tensor {
			return all.Slice(1, i, i+c.Down*rows).Split(1, rows, c.Down).Index(2, 0)
		})
		w.summed(y.Slice(0, f, f+1), gates, func(i int) engine.Tensor {
			return thin.Slice(2, i, i+c.Down*columns).Split(2, columns, c.Down).Index(3, 0)
		})
		w.arena.Release(mark)
	}
}

// summed writes the sum of parts, each times a gate, to y.
func (w *walk) summed(y engine.Tensor, gates []engine.Tensor, part func(i int) engine.Tensor) {
	mark := w.arena.Mark()
	term := w.frames(1, y.Dim(1), y.Dim(2), y.Dim(3))
	w.ops.Fill(y, 0)
	for i, gate := range gates {
		w.ops.Copy(term, part(i))
		w.ops.GatedAdd(rows(y), rows(y), gate, rows(term), engine.Tensor{})
	}
	w.arena.Release(mark)
}
