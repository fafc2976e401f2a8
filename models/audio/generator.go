package audio

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Generator describes a network that makes samples of columns: BigVGAN (arXiv:2206.04658), or HiFi-GAN
// (arXiv:2010.05646), of which it has everything but the activations. Each level raises the number of samples by a
// transposed convolution and has the mean of several blocks.
type Generator struct {
	In, Out   int                // channels of columns and of samples
	Width     int                // channels after the first convolution; they halve at each level
	Rates     []int              // by how much levels raise the number of samples
	Taps      []int              // of the levels' transposed convolutions
	Kernels   []int              // taps of a level's blocks
	Dilations [][blockLayers]int // of the first convolutions of a level's blocks
	// Leaky is HiFi-GAN: activations are x where it is positive and a part of it elsewhere. Otherwise they are snakes
	// between filters, with Betas of two factors each.
	Leaky, Betas bool
}

// Rate returns how many samples a column becomes, or a number above mostRate if they are more than that.
func (g Generator) Rate() int {
	n := 1
	for _, r := range g.Rates {
		if n *= r; n > mostRate {
			break
		}
	}
	return n
}

// The most that a generator may have: levels and blocks of a level, samples that a dilated convolution's taps are apart
// or a column becomes, channels.
const (
	mostLevels, mostDilation = 16, 16
	mostRate, mostChannels   = 1 << 12, 1 << 14
)

// check returns an error for a description that nothing can be computed with.
func (g Generator) check() error {
	within := func(v []int, low, high int) bool {
		return len(v) >= 1 && len(v) <= mostLevels && slices.Min(v) >= low && slices.Max(v) <= high
	}
	switch {
	case !within(g.Rates, 1, mostRate) || g.Rate() > mostRate:
		return fmt.Errorf("levels raise the number of samples by %v: want 1 to %d levels, a product of 1..%d", g.Rates,
			mostLevels, mostRate)
	case g.Width>>len(g.Rates) < 1 || g.Width > mostChannels:
		return fmt.Errorf("%d channels, halved at each of %d levels: want 1 or more at the last, %d or fewer", g.Width,
			len(g.Rates), mostChannels)
	case !within(g.Kernels, 1, mostRate) || len(g.Kernels) != len(g.Dilations):
		return fmt.Errorf("blocks of %v taps with dilations %v: want 1 to %d, and as many of both", g.Kernels, g.Dilations,
			mostLevels)
	case len(g.Taps) != len(g.Rates):
		return fmt.Errorf("%d transposed convolutions for %d levels", len(g.Taps), len(g.Rates))
	}
	for i, k := range g.Taps {
		if r := g.Rates[i]; k < r || k > mostRate || (k-r)%2 != 0 {
			return fmt.Errorf("a transposed convolution of %d taps for %d samples: want as many and an even number more", k, r)
		}
	}
	for i, k := range g.Kernels {
		if d := g.Dilations[i]; k%2 == 0 || slices.Min(d[:]) < 1 || slices.Max(d[:]) > mostDilation {
			return fmt.Errorf("a block of %d taps with dilations %v: want an odd number, dilations of 1..%d", k, d, mostDilation)
		}
	}
	return nil
}

// generator is the weights of a Generator under the names that take gives them.
type generator struct {
	Generator
	Pre    *engine.Weight `weight:"conv_pre,conv"`
	Up     []single       `weight:"ups"`
	Blocks []block        `weight:"resblocks"` // those of a level after each other
	Post   *engine.Weight `weight:"conv_post,conv,optbias"`

	acts map[string]*activation // by name: "resblocks.0.activations.0", "activation_post"
}

type single struct {
	Conv *engine.Weight `weight:"conv,conv"`
}

// block adds convolutions of several dilations to a sound, each followed by one without.
type block struct {
	Dilated []single `weight:"convs1"`
	Plain   []single `weight:"convs2"`
}

const (
	blockLayers = 3 // pairs of convolutions in a block
	endTaps     = 7 // of the first and the last convolution
)

// newGenerator returns the struct for g, without weights.
func newGenerator(g Generator) *generator {
	out := &generator{Generator: g, acts: map[string]*activation{}, Up: make([]single, len(g.Rates))}
	for range len(g.Rates) * len(g.Kernels) {
		out.Blocks = append(out.Blocks, block{make([]single, blockLayers), make([]single, blockLayers)})
	}
	return out
}

// take keeps a tensor of an activation, and puts one of a convolution into to, its name behind prefix. Transposed
// convolutions become plain ones.
func (g *generator) take(to map[string]weights.Stored, prefix, name string, t weights.Stored) {
	if at, part, ok := activationPart(name); ok {
		a := g.acts[at]
		if a == nil {
			a = &activation{}
			g.acts[at] = a
		}
		*map[string]*[]float32{"alpha": &a.alpha, "beta": &a.beta, "up": &a.up, "down": &a.down}[part] = t.F32()
		return
	}
	var level int
	if tail, up := strings.CutPrefix(name, "ups."); up {
		_, _ = fmt.Sscanf(tail, "%d.", &level)
		if level < 0 || level >= len(g.Rates) {
			to[prefix+name] = t
			return
		}
		name = fmt.Sprintf("ups.%d.conv.%s", level, tail[strings.LastIndexByte(tail, '.')+1:])
		if len(t.Shape) == 3 {
			t = transposed(t, g.Rates[level])
		} else {
			t = repeated(t, g.Rates[level])
		}
	}
	for _, list := range []string{".convs1.", ".convs2."} {
		if strings.Contains(name, list) {
			dot := strings.LastIndexByte(name, '.')
			name = name[:dot] + ".conv" + name[dot:]
		}
	}
	to[prefix+name] = flat(t)
}

// activationPart returns the activation that a tensor belongs to and what of it the tensor is. Files have one list of a
// block's activations, or two, of those before its first and before its second convolutions.
func activationPart(name string) (at, part string, ok bool) {
	for tail, p := range map[string]string{
		".act.alpha": "alpha", ".act.beta": "beta", ".upsample.filter": "up", ".downsample.lowpass.filter": "down",
	} {
		if at, ok = strings.CutSuffix(name, tail); ok {
			part = p
			break
		}
	}
	var blockAt, i int
	var list string
	switch n, _ := fmt.Sscanf(strings.ReplaceAll(at, ".", " "), "resblocks %d %s %d", &blockAt, &list, &i); {
	case !ok:
		return "", "", false
	case at == "act_post":
		at = "activation_post"
	case n == 3 && list == "acts1":
		at = activationName(blockAt, 2*i)
	case n == 3 && list == "acts2":
		at = activationName(blockAt, 2*i+1)
	}
	return at, part, true
}

func activationName(blockAt, i int) string {
	return fmt.Sprintf("resblocks.%d.activations.%d", blockAt, i)
}

// complete returns an error for the first weight or activation whose size is not the described one.
func (g *generator) complete() error {
	s := sizes{}
	s.conv(g.Pre, g.Width, endTaps*g.In)
	want := map[string]int{"activation_post": g.Width >> len(g.Rates)}
	for i, rate := range g.Rates {
		first, last := reach(rate, g.Taps[i])
		s.conv(g.Up[i].Conv, rate*(g.Width>>(i+1)), (last-first+1)*(g.Width>>i))
	}
	for i := range g.Blocks {
		c, k := g.Width>>(i/len(g.Kernels)+1), g.Kernels[i%len(g.Kernels)]
		for n := range blockLayers {
			s.conv(g.Blocks[i].Dilated[n].Conv, c, k*c)
			s.conv(g.Blocks[i].Plain[n].Conv, c, k*c)
			want[activationName(i, 2*n)], want[activationName(i, 2*n+1)] = c, c
		}
	}
	s.conv(g.Post, g.Out, endTaps*(g.Width>>len(g.Rates)))
	for name, c := range want {
		if a := g.acts[name]; !g.Leaky && s.err == nil {
			s.err = a.complete(name, c, g.Betas)
		}
	}
	return s.err
}

// sizes compares weights with what they should be, up to the first that differs.
type sizes struct{ err error }

func (s *sizes) conv(w *engine.Weight, n, k int) {
	if s.err == nil && (w.N() != n || w.K() != k) {
		s.err = fmt.Errorf("%s is [%d, %d], want [%d, %d]", w.Name, w.N(), w.K(), n, k)
	}
}

// generating is one pass over the layers.
type generating struct {
	*generator
	env  Env
	bufs []buffer
	// gates of a number for each channel: the share of a block, -1, and what a leaky activation takes from its input
	share, minus, less, lessPost engine.Tensor
}

// generatorBuffers is how many buffers a pass holds at a time.
const generatorBuffers = 5

// leak and leakPost are what is left of negative values, between convolutions and before the last one.
const leak, leakPost = 0.1, 0.01

// most returns how many values a buffer holds for t columns.
func (g *generator) most(t int) int {
	n, most := t, t*max(g.In, g.Width)
	for i, r := range g.Rates {
		n *= r
		most = max(most, n*(g.Width>>(i+1)))
	}
	return max(most, n*g.Out)
}

// pass returns a pass over t columns with buffers of at least so many values.
func (g *generator) pass(env Env, a *engine.Arena, t, values int) *generating {
	w := &generating{generator: g, env: env}
	for range generatorBuffers {
		w.bufs = append(w.bufs, newBuffer(a, max(values, g.most(t)), max(g.In, g.Width)))
	}
	for gate, v := range map[*engine.Tensor]float32{
		&w.share: 1 / float32(len(g.Kernels)), &w.minus: -1, &w.less: leak - 1, &w.lessPost: leakPost - 1,
	} {
		if *gate = a.Alloc(engine.F32, 1, g.Width); !a.Measuring() {
			env.Ops.Fill(*gate, v)
		}
	}
	return w
}

// bytes returns the memory of a pass.
func (g *generator) bytes(t, values int) int {
	a := engine.NewMeasuringArena("audio")
	g.pass(Env{}, a, t, values)
	return a.Peak()
}

// run makes the samples [t*Rate, Out] of t columns, which are in the first buffer.
func (w *generating) run(t int) ([]float32, error) {
	ops := w.env.Ops
	in, x, sum, branch, out := w.bufs[0], w.bufs[1], w.bufs[2], w.bufs[3], w.bufs[4]
	c, n := w.Width, t
	conv(ops, x.of(n, c), in.of(n, w.In), w.Pre, 1, endTaps/2, endTaps/2)
	for i, rate := range w.Rates {
		if err := w.env.check(); err != nil {
			return nil, err
		}
		from, up := x, w.Up[i].Conv
		if w.Leaky {
			w.leaky(in, x, n, c, w.less)
			from = in
		}
		first, last := reach(rate, w.Taps[i])
		conv(ops, sum.of(n, up.N()), from.of(n, c), up, 1, last, -first)
		n, c = n*rate, c/2
		x, sum = sum, x
		ops.Fill(sum.of(n, c), 0)
		for k := range w.Kernels {
			ops.Copy(branch.of(n, c), x.of(n, c))
			if err := w.block(i*len(w.Kernels)+k, w.Dilations[k], branch, in, out, n, c); err != nil {
				return nil, err
			}
			w.add(sum, sum, w.share, branch, n, c)
		}
		x, sum = sum, x
	}
	if w.Leaky {
		w.leaky(in, x, n, c, w.lessPost)
	} else if err := w.smooth(in, x, n, c, "activation_post"); err != nil {
		return nil, err
	}
	conv(ops, out.of(n, w.Out), in.of(n, c), w.Post, 1, endTaps/2, endTaps/2)
	wave := make([]float32, n*w.Out)
	return wave, ops.Download(wave, out.of(n, w.Out)).Wait()
}

// block adds to x [n, c] what the convolutions of a block make of it.
func (w *generating) block(at int, apart [blockLayers]int, x, in, out buffer, n, c int) error {
	for i := range blockLayers {
		if err := w.env.check(); err != nil {
			return err
		}
		if err := w.activate(in, x, n, c, at, 2*i); err != nil {
			return err
		}
		dilated(w.env.Ops, out, in, n, c, w.Blocks[at].Dilated[i].Conv, apart[i], false)
		if err := w.activate(in, out, n, c, at, 2*i+1); err != nil {
			return err
		}
		dilated(w.env.Ops, x, in, n, c, w.Blocks[at].Plain[i].Conv, 1, true)
	}
	return nil
}

// add writes x + gate*r to y, all [n, c].
func (w *generating) add(y, x buffer, gate engine.Tensor, r buffer, n, c int) {
	three := func(b buffer) engine.Tensor { return rows(b.of(n, c)).Unsqueeze(0) }
	w.env.Ops.GatedAdd(three(y), three(x), gate.Slice(1, 0, c), three(r), engine.Tensor{})
}

// activate writes activation i of a block of x [n, c] to y.
func (w *generating) activate(y, x buffer, n, c, blockAt, i int) error {
	if !w.Leaky {
		return w.smooth(y, x, n, c, activationName(blockAt, i))
	}
	w.leaky(y, x, n, c, w.less)
	return nil
}

// leaky writes x where it is positive and a part of it elsewhere to y: x less the rest of min(x, 0).
func (w *generating) leaky(y, x buffer, n, c int, less engine.Tensor) {
	w.env.Ops.Activate(y.of(n, c), x.of(n, c), engine.ReLU)
	w.add(y, x, w.minus, y, n, c)
	w.add(y, x, less, y, n, c)
}

// smooth writes an activation of x to y, both [n, c].
func (w *generating) smooth(y, x buffer, n, c int, name string) error {
	v := make([]float32, n*c)
	if err := w.env.Ops.Download(v, x.of(n, c)).Wait(); err != nil {
		return err
	}
	w.env.Ops.Upload(y.of(n, c), w.acts[name].smooth(v))
	return nil
}
