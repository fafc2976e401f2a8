package audio

import (
	"fmt"

	"patchbay/engine"
)

// encodeBuffers is how many buffers encoding holds at a time.
const encodeBuffers = 3

// encoding is one pass over the layers of the encoder.
type encoding struct {
	*codec
	env  Env
	bufs []buffer
}

func (v *codec) encoding(env Env, a *engine.Arena, values int) *encoding {
	w := &encoding{codec: v, env: env}
	for range encodeBuffers {
		w.bufs = append(w.bufs, newBuffer(a, values, v.Width))
	}
	return w
}

// encode encodes the channels of a sound one by one.
func (v *codec) encode(env Env, wave []float32, s, n int) ([]float32, error) {
	t, hop, c := v.Latents(n), v.Hop(), v.channels
	most, rest := v.Width, hop
	for i, stride := range v.Strides {
		most, rest = max(most, v.Encoder<<i*rest), rest/stride
	}
	values := t * max(most, v.Encoder<<len(v.Strides))
	sizing := engine.NewMeasuringArena("audio")
	v.encoding(Env{}, sizing, values)
	arena, free, err := env.arena(sizing.Peak() + v.headMemory(t))
	if err != nil {
		return nil, err
	}
	defer free()
	w := v.encoding(env, arena, values)
	out := make([]float32, c*s*t)
	for channel := range s {
		samples := make([]float32, t*hop)
		copy(samples, wave[channel*n:(channel+1)*n])
		mean, err := w.channel(samples, arena)
		if err != nil {
			return nil, err
		}
		for i := range t {
			for k := range c {
				out[(k*s+channel)*t+i] = (mean[i*c+k] - v.mean[k]) / v.std[k]
			}
		}
	}
	return out, nil
}

// channel encodes one channel of whole latents and returns means [t, C].
func (w *encoding) channel(samples []float32, a *engine.Arena) ([]float32, error) {
	ops, nets, n, c := w.env.Ops, &w.nets, len(samples), w.Encoder
	x, in, out := w.bufs[0], w.bufs[1], w.bufs[2]
	ops.Upload(in.of(n, 1), samples)
	conv(ops, x.of(n, c), in.of(n, 1), nets.In, 1, endTaps/2, endTaps/2)
	apart := codecDilations()
	for i, stride := range w.Strides {
		at := fmt.Sprintf("encoder.down.%d.", i)
		for k := range blockLayers {
			u, name := &nets.Down[i].Units[k], fmt.Sprintf("%sunit.%d.", at, k)
			if err := w.env.check(); err != nil {
				return nil, err
			}
			if err := w.snake(in, x, n, c, name+"act1.alpha"); err != nil {
				return nil, err
			}
			dilated(ops, out, in, n, c, u.Conv1, apart[k], false)
			if err := w.snake(in, out, n, c, name+"act2.alpha"); err != nil {
				return nil, err
			}
			dilated(ops, x, in, n, c, u.Conv2, 1, true)
		}
		if err := w.snake(in, x, n, c, at+"alpha"); err != nil {
			return nil, err
		}
		pad := (stride + 1) / 2
		conv(ops, out.of(n/stride, 2*c), in.of(n, c), nets.Down[i].Conv, stride, pad, pad)
		x, out, n, c = out, x, n/stride, 2*c
	}
	if err := w.snake(in, x, n, c, "encoder.alpha"); err != nil {
		return nil, err
	}
	conv(ops, out.of(n, w.Width), in.of(n, c), nets.Latent, 1, latentTaps/2, latentTaps/2)
	mark := a.Mark()
	defer a.Release(mark)
	return w.head(w.headWork(a, n), rows(out.of(n, w.Width)).Unsqueeze(0))
}

// snake writes the activation of x to y. Both are [n, c].
func (w *encoding) snake(y, x buffer, n, c int, name string) error {
	v := make([]float32, n*c)
	if err := w.env.Ops.Download(v, x.of(n, c)).Wait(); err != nil {
		return err
	}
	alpha := w.alphas[name]
	snake(v, alpha, alpha)
	w.env.Ops.Upload(y.of(n, c), v)
	return nil
}

// headWork is the memory of the encoder's head over t latents, [1, t, columns].
type headWork struct{ norm, qkv, heads, x, low, gate, up engine.Tensor }

func (v *codec) headWork(a *engine.Arena, t int) headWork {
	row := func(n int) engine.Tensor { return a.Alloc(engine.F32, 1, t, n) }
	c, hidden := v.channels, v.nets.Head.Gate.N()
	return headWork{
		norm: row(v.Width), qkv: row(3 * v.Width), heads: row(v.Width), x: row(c), low: row(c),
		gate: row(hidden), up: row(hidden),
	}
}

func (v *codec) headMemory(t int) int {
	a := engine.NewMeasuringArena("audio")
	v.headWork(a, t)
	return a.Peak()
}

// headEps is that of torch's LayerNorm.
const headEps = 1e-5

// head computes the means [t, C] of x [1, t, Width].
func (w *encoding) head(m headWork, x engine.Tensor) ([]float32, error) {
	ops, h, c := w.env.Ops, &w.nets.Head, w.channels
	t, width := x.Dim(1), x.Dim(2)
	size := width / heads
	ops.LayerNorm(m.norm, x, h.Norm1.Weight, h.Norm1.Bias, headEps)
	ops.Linear(m.qkv, m.norm, h.QKV, engine.Epilogue{})
	five := m.qkv.Split(2, 3, heads, size)
	ops.Attention(m.heads.Split(2, heads, size), five.Index(2, 0), five.Index(2, 1), five.Index(2, 2),
		engine.AttentionArgs{Causal: true})
	all, pooled := make([]float32, t*width), make([]float32, t*c)
	if err := ops.Download(all, m.heads).Wait(); err != nil {
		return nil, err
	}
	for i := range all {
		row, at := i/width, i%size // the mean of heads and of neighbors
		pooled[row*c+at*c/size] += all[i] / float32(width/c)
	}
	ops.Upload(m.low, pooled)
	ops.Linear(m.x, m.low, h.Out, engine.Epilogue{})
	ops.LayerNorm(m.norm, x, h.Norm3.Weight, h.Norm3.Bias, headEps)
	ops.Linear(m.x, m.norm, h.Proj, engine.Epilogue{Residual: m.x})
	ops.LayerNorm(m.low, m.x, h.Norm2.Weight, h.Norm2.Bias, headEps)
	ops.LayerNorm(m.low, m.low, h.Norm.Weight, h.Norm.Bias, headEps)
	ops.Linear(m.gate, m.low, h.Gate, engine.Epilogue{})
	ops.Linear(m.up, m.low, h.Up, engine.Epilogue{})
	ops.ActivateMul(m.gate, m.gate, m.up, engine.GELUTanh)
	ops.Linear(m.x, m.gate, h.Down, engine.Epilogue{Residual: m.x})
	ops.Linear(m.low, m.x, w.nets.Mean, engine.Epilogue{})
	out := make([]float32, t*c)
	return out, ops.Download(out, m.low).Wait()
}
