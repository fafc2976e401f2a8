package audio

import (
	"math"
	"slices"

	"patchbay/engine"
)

// spectral is one pass over the layers of a side, whose buffers hold a spectrogram [1, T, F, C] of some size.
type spectral struct {
	env     Env
	t, f, c int       // of x
	bufs    [3]buffer // x, and two that are free
}

// newSpectral returns a pass with buffers of so many values.
func newSpectral(env Env, a *engine.Arena, values int) *spectral {
	w := &spectral{env: env}
	for i := range w.bufs {
		w.bufs[i] = newBuffer(a, values, 0)
	}
	return w
}

// most returns how many values a buffer of a side holds, which t rows of a spectrogram go into or come from.
func (v *melCodec) most(t int) (most int) {
	for i, f := 0, v.Bands; i < melLevels; i, f = i+1, f/2 {
		c := max(v.Width, v.Sounds, v.channels)
		for _, near := range v.Widths[max(0, i-1):min(melLevels, i+2)] {
			c = max(c, v.Width*near)
		}
		most = max(most, (t+1)*f*c) // a row more before the first one is left out
		t = (t-1)/2 + 1
	}
	return most
}

// sideBytes returns the memory of a pass over a side.
func (v *melCodec) sideBytes(t int) int {
	a := engine.NewMeasuringArena("audio")
	newSpectral(Env{}, a, v.most(t))
	return a.Peak()
}

// side takes an arena for a pass over a side.
func (v *melCodec) side(env Env, t int) (*spectral, func(), error) {
	arena, free, err := env.arena(v.sideBytes(t))
	if err != nil {
		return nil, nil, err
	}
	return newSpectral(env, arena, v.most(t)), free, nil
}

// in returns buffer i as a spectrogram.
func (w *spectral) in(i, t, f, c int) engine.Tensor {
	return engine.NewTensor(w.bufs[i].memory.Buf, engine.F32, 1, t, f, c)
}

func (w *spectral) x() engine.Tensor { return w.in(0, w.t, w.f, w.c) }

// begin uploads x.
func (w *spectral) begin(x []float32, t, f, c int) {
	w.t, w.f, w.c = t, f, c
	w.env.Ops.Upload(w.x(), x)
}

// moved makes buffer i x, of the given size.
func (w *spectral) moved(i, t, f, c int) {
	w.bufs[0], w.bufs[i] = w.bufs[i], w.bufs[0]
	w.t, w.f, w.c = t, f, c
}

// causal returns the arguments of a convolution whose rows see themselves and those before.
func causal(w *engine.Weight, in int) engine.ConvArgs {
	k := 1
	if w.K() > in {
		k = melTaps
	}
	return engine.ConvArgs{KY: k, KX: k, Stride: 1, Top: k - 1, Left: k / 2, Right: k / 2}
}

// melTaps is the side of a convolution's kernel.
const melTaps = 3

// conv makes x the convolution of it.
func (w *spectral) conv(c *engine.Weight) {
	w.env.Ops.Conv2D(w.in(1, w.t, w.f, c.N()), w.x(), c, causal(c, w.c))
	w.moved(1, w.t, w.f, c.N())
}

// melEps is added to the mean of squares by which a norm divides.
const melEps = 1e-6

// silenced writes silu(norm(x)) to y, which may be x.
func (w *spectral) silenced(y, x engine.Tensor) {
	w.env.Ops.RMSNorm(y, x, engine.Tensor{}, melEps)
	w.env.Ops.Activate(y, y, engine.SiLU)
}

// blocks passes x through residual blocks.
func (w *spectral) blocks(all ...melBlock) error {
	for _, b := range all {
		if err := w.env.check(); err != nil {
			return err
		}
		x, mid, out := w.x(), w.in(1, w.t, w.f, b.out), w.in(2, w.t, w.f, b.out)
		first := w.in(2, w.t, w.f, b.in)
		w.silenced(first, x)
		w.env.Ops.Conv2D(mid, first, b.Conv1.Conv, causal(b.Conv1.Conv, b.in))
		w.silenced(mid, mid)
		last := causal(b.Conv2.Conv, b.out)
		if b.Shortcut == nil {
			last.Residual = x
			w.env.Ops.Conv2D(x, mid, b.Conv2.Conv, last)
			continue
		}
		w.env.Ops.Conv2D(out, x, b.Shortcut.Conv, causal(b.Shortcut.Conv, b.in))
		last.Residual = out
		w.env.Ops.Conv2D(out, mid, b.Conv2.Conv, last)
		w.moved(2, w.t, w.f, b.out)
	}
	return nil
}

// double doubles rows and columns of x, but leaves out the first row, which saw nothing that the second does not see.
func (w *spectral) double(c *engine.Weight) {
	wide := w.in(1, 2*w.t, 2*w.f, w.c)
	w.env.Ops.Upsample2x(wide, w.x())
	a := causal(c, w.c)
	a.Top--
	w.env.Ops.Conv2D(w.in(0, 2*w.t-1, 2*w.f, w.c), wide, c, a)
	w.t, w.f = 2*w.t-1, 2*w.f
}

// halve halves rows and columns of x.
func (w *spectral) halve(c *engine.Weight) {
	t, f := (w.t-1)/2+1, w.f/2
	w.env.Ops.Conv2D(w.in(1, t, f, w.c), w.x(), c, engine.ConvArgs{
		KY: melTaps, KX: melTaps, Stride: 2, Top: melTaps - 1, Right: 1,
	})
	w.moved(1, t, f, w.c)
}

// end passes x through the last convolution and returns it, [T, F, C].
func (w *spectral) end(c *engine.Weight) ([]float32, error) {
	w.silenced(w.x(), w.x())
	w.conv(c)
	out := make([]float32, w.t*w.f*w.c)
	return out, w.env.Ops.Download(out, w.x()).Wait()
}

// spectrogram decodes a latent [C, y, x] to a spectrogram [T, F, channels].
func (v *melCodec) spectrogram(env Env, latent []float32, y, x int) ([]float32, error) {
	w, free, err := v.side(env, v.rows(y))
	if err != nil {
		return nil, err
	}
	defer free()
	z := make([]float32, len(latent))
	for i := range z {
		k, at := i%v.channels, i/v.channels
		of := k*x + at%x
		z[i] = latent[k*y*x+at]*v.std[of] + v.mean[of]
	}
	d := &v.nets.Decoder
	w.begin(z, y, x, v.channels)
	w.conv(d.In.Conv)
	if err := w.blocks(d.Middle.First, d.Middle.Second); err != nil {
		return nil, err
	}
	for _, l := range slices.Backward(d.Up) {
		if err := w.blocks(l.Blocks...); err != nil {
			return nil, err
		}
		if l.Double != nil {
			w.double(l.Double.Conv)
		}
	}
	return w.end(d.Out.Conv)
}

// decode decodes a latent to a spectrogram, and that to samples.
func (v *melCodec) decode(env Env, latent []float32, y, x int) ([]float32, error) {
	mel, err := v.spectrogram(env, latent, y, x)
	if err != nil {
		return nil, err
	}
	t, s := v.rows(y), v.Sounds
	columns := make([]float32, len(mel))
	for i, f := range mel { // [T, F, channels] to [T, (channel, F)]
		columns[i/(v.Bands*s)*v.Bands*s+i%s*v.Bands+i/s%v.Bands] = f
	}
	wave, err := v.nets.Vocoder.samples(env, columns, t)
	switch {
	case err != nil:
		return nil, err
	case v.Raw:
	case v.Tanh:
		for i, f := range wave {
			wave[i] = float32(math.Tanh(float64(f)))
		}
	default:
		clamp(wave)
	}
	n := t * v.Vocoder.Rate()
	out := make([]float32, 0, len(wave))
	for channel := range s {
		for i := range n {
			out = append(out, wave[i*s+channel])
		}
	}
	if v.Mel.Wider == nil {
		return out, nil
	}
	return v.widen(env, out, n)
}

// samples makes samples [t*Rate, Out] of columns [t, In].
func (g *generator) samples(env Env, columns []float32, t int) ([]float32, error) {
	arena, free, err := env.arena(g.bytes(t, 0))
	if err != nil {
		return nil, err
	}
	defer free()
	w := g.pass(env, arena, t, 0)
	env.Ops.Upload(w.bufs[0].of(t, g.In), columns)
	return w.run(t)
}

// widen adds to a sound [channels, n] of the first network, at a higher rate, what the second one makes of its
// spectrogram. Silence fills it up to whole rows.
func (v *melCodec) widen(env Env, wave []float32, n int) ([]float32, error) {
	c, s := v.Mel.Wider, v.Sounds
	t := (n + c.Hop - 1) / c.Hop
	bands := c.In / s
	columns, out := make([]float32, t*c.In), make([]float32, s*n*c.Ratio)
	padded := make([][]float32, s)
	for channel := range s {
		one := make([]float32, t*c.Hop)
		copy(one, wave[channel*n:(channel+1)*n])
		padded[channel] = one
		rows, err := v.nets.Wide.rows(env, t, c.Hop-c.Window, func(i int) float32 {
			if i < 0 {
				return 0
			}
			return one[i]
		})
		if err != nil {
			return nil, err
		}
		for i, f := range rows {
			columns[i/bands*c.In+channel*bands+i%bands] = f
		}
	}
	more, err := v.nets.Wider.samples(env, columns, t)
	if err != nil {
		return nil, err
	}
	for channel := range s {
		same := Resample(padded[channel], 1, c.Ratio, true)
		for i := range n * c.Ratio {
			out[channel*n*c.Ratio+i] = more[i*s+channel] + same[i]
		}
	}
	clamp(out)
	return out, nil
}

// encode encodes the spectrogram of a sound. Around the sound is its mirror image.
func (v *melCodec) encode(env Env, wave []float32, channels, n int) ([]float32, error) {
	var mel []float32
	t := 0
	for channel := range v.Sounds { // one channel is all
		at := min(channel, channels-1)
		one := Resample(wave[at*n:(at+1)*n], melRate, v.Rate, false)
		t = len(one)/v.Hop + 1
		rows, err := v.nets.Spectrum.rows(env, t, -v.Window/2, func(i int) float32 {
			if i = max(i, -i); i >= len(one) {
				i = 2*(len(one)-1) - i
			}
			return one[i]
		})
		if err != nil {
			return nil, err
		}
		if mel == nil {
			mel = make([]float32, len(rows)*v.Sounds)
		}
		for i, f := range rows {
			mel[i*v.Sounds+channel] = f
		}
	}
	w, free, err := v.side(env, t)
	if err != nil {
		return nil, err
	}
	defer free()
	e := &v.nets.Encoder
	w.begin(mel, t, v.Bands, v.Sounds)
	w.conv(e.In.Conv)
	for _, l := range e.Down {
		if err := w.blocks(l.Blocks...); err != nil {
			return nil, err
		}
		if l.Halve != nil {
			w.halve(l.Halve.Conv)
		}
	}
	if err := w.blocks(e.Middle.First, e.Middle.Second); err != nil {
		return nil, err
	}
	z, err := w.end(e.Out.Conv)
	if err != nil {
		return nil, err
	}
	out, columns := make([]float32, len(z)), v.Columns()
	for i, f := range z {
		k, at := i%v.channels, i/v.channels
		of := k*columns + at%columns
		out[k*w.t*columns+at] = (f - v.mean[of]) / v.std[of]
	}
	return out, nil
}
