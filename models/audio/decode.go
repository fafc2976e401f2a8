package audio

import (
	"fmt"

	"patchbay/engine"
)

// Decode turns a latent [C, s, t] into a sound [s, t*Hop] of values in -1..1. Errors are sizes that do not fit, and
// those of Check and the device.
func (v *VAE) Decode(env Env, latent []float32, s, t int) ([]float32, error) {
	c := v.Config.Channels
	if s < 1 || t < 1 || len(latent) != c*s*t {
		return nil, fmt.Errorf("audio vae decode: %d values for a latent [%d, %d, %d]", len(latent), c, s, t)
	}
	most := v.Config.Width
	n := 1
	for i, rate := range rates() {
		most, n = max(most, v.Config.Decoder*n>>i), n*rate
	}
	most = t * max(most, v.Config.Decoder*n>>len(rates()))
	arena, free, err := env.arena(v.memory(most, decodeBuffers))
	if err != nil {
		return nil, err
	}
	defer free()
	w := v.walk(env, arena, most, decodeBuffers)
	var out []float32
	for channel := range s {
		z := make([]float32, 0, c*t)
		for i := range t {
			for k := range c {
				z = append(z, latent[(k*s+channel)*t+i]*v.std[k]+v.mean[k])
			}
		}
		wave, err := w.decode(z, t)
		if err != nil {
			return nil, err
		}
		for i, f := range wave {
			wave[i] = min(max(f, -1), 1)
		}
		out = append(out, wave...)
	}
	return out, nil
}

// The numbers of buffers that decoding and encoding hold at a time.
const (
	decodeBuffers = 5
	encodeBuffers = 3
)

// walk is one pass over the layers of one channel of a sound.
type walk struct {
	v    *VAE
	env  Env
	bufs []buffer
}

// memory returns the bytes of buffers for so many values each.
func (v *VAE) memory(values, buffers int) int {
	a := engine.NewMeasuringArena("audio")
	v.walk(Env{}, a, values, buffers)
	return a.Peak()
}

func (v *VAE) walk(env Env, a *engine.Arena, values, buffers int) *walk {
	w := &walk{v: v, env: env}
	for range buffers {
		w.bufs = append(w.bufs, newBuffer(a, values, max(v.Config.Width, v.Config.Decoder)))
	}
	return w
}

// decode decodes one channel, z [t, C] before normalization.
func (w *walk) decode(z []float32, t int) ([]float32, error) {
	ops, nets := w.env.Ops, &w.v.nets
	x, sum, branch, in, out := w.bufs[0], w.bufs[1], w.bufs[2], w.bufs[3], w.bufs[4]
	c, n := w.v.Config.Decoder, t
	ops.Upload(branch.of(n, w.v.Config.Channels), z)
	ops.Linear(rows(in.of(n, w.v.Config.Width)), rows(branch.of(n, w.v.Config.Channels)), nets.Widen, engine.Epilogue{})
	conv(ops, x.of(n, c), in.of(n, w.v.Config.Width), nets.Pre, 1, preTaps/2, preTaps/2)
	factor := float32(1)
	for i, rate := range rates() {
		if err := w.env.check(); err != nil {
			return nil, err
		}
		up := nets.Up[i].Conv
		first, last := reach(rate, w.v.upTaps[i])
		conv(ops, sum.of(n, up.N()), x.of(n, c), up, 1, last, -first)
		n, c = n*rate, c/2
		x, sum = sum, x
		for k := range kernels {
			at := i*kernels + k
			ops.Copy(branch.of(n, c), x.of(n, c))
			if err := w.block(&nets.Blocks[at], fmt.Sprintf("decoder.resblocks.%d.activations.", at), branch, in, out, n,
				c); err != nil {
				return nil, err
			}
			if k == 0 {
				ops.Copy(sum.of(n, c), branch.of(n, c))
			} else {
				ops.Add(rows(sum.of(n, c)).Unsqueeze(0), rows(sum.of(n, c)).Unsqueeze(0), rows(branch.of(n, c)).Unsqueeze(0))
			}
		}
		x, sum, factor = sum, x, 1.0/kernels // which the next level's weights hold
	}
	if err := w.smooth(in, x, n, c, "decoder.activation_post.act", factor); err != nil {
		return nil, err
	}
	conv(ops, out.of(n, 1), in.of(n, c), nets.Post, 1, postTaps/2, postTaps/2)
	wave := make([]float32, n)
	return wave, ops.Download(wave, out.of(n, 1)).Wait()
}

// block adds to x [n, c] what convolutions make of it.
func (w *walk) block(b *block, name string, x, in, out buffer, n, c int) error {
	_, apart := dilations()
	for i := range blockLayers {
		if err := w.env.check(); err != nil {
			return err
		}
		if err := w.smooth(in, x, n, c, fmt.Sprintf("%s%d.act", name, 2*i), 1); err != nil {
			return err
		}
		dilated(w.env.Ops, out, in, n, c, b.Dilated[i].Conv, apart[i], false)
		if err := w.smooth(in, out, n, c, fmt.Sprintf("%s%d.act", name, 2*i+1), 1); err != nil {
			return err
		}
		dilated(w.env.Ops, x, in, n, c, b.Plain[i].Conv, 1, true)
	}
	return nil
}

// smooth writes the activation of x, times factor, to y. Both are [n, c].
func (w *walk) smooth(y, x buffer, n, c int, name string, factor float32) error {
	v := make([]float32, n*c)
	if err := w.env.Ops.Download(v, x.of(n, c)).Wait(); err != nil {
		return err
	}
	w.env.Ops.Upload(y.of(n, c), smooth(v, exp(w.v.alphas[name+".alpha"]), exp(w.v.alphas[name+".beta"]), factor))
	return nil
}

// preTaps is that of the decoder's and the encoder's first convolution.
const preTaps = 7
