package vae

import (
	"fmt"

	"patchbay/engine"
)

// A clip passes through the walk frame by frame, so that memory does not depend on its length. In an autoencoder of
// videos (Wan) convolutions reach two frames back and none forward: each keeps its last two inputs. The first frame is
// alone: levels that double or halve the number of frames pass it on as it is, and from the second on make two of each,
// or one of two. So the result is that of the whole clip at once.

// Clip is the frames of a clip on their way through DecodeClip or EncodeClip.
type Clip struct {
	T     int                                     // how many are loaded
	Load  func(i int, frame engine.Tensor)        // fills the tensor with the rows of frame i
	Store func(i int, result engine.Tensor) error // takes the rows of frame i of the result
}

// history is the last inputs of a layer, [1, Y, X, C] each.
type history struct {
	shape  []int
	frames [2]engine.Tensor
	n      int  // how many inputs there were
	first  bool // the first frame of the clip has passed
}

// history returns the inputs that the layer with this key has had, which look like x.
func (w *walk) history(key any, x engine.Tensor) *history {
	h := w.before[key]
	if h == nil { // in the pass that measures
		h = &history{shape: x.Shape()}
		w.before[key], w.kinds = h, append(w.kinds, key)
	}
	return h
}

// room returns an empty history with memory for two inputs.
func (h *history) room(env Env) *history {
	return &history{frames: [2]engine.Tensor{
		env.Arena.Alloc(env.DType, h.shape...), env.Arena.Alloc(env.DType, h.shape...),
	}}
}

// frame returns the input that came k before the next one, 1 or 2.
func (h *history) frame(k int) (engine.Tensor, bool) {
	if h.n < k {
		return engine.Tensor{}, false
	}
	return h.frames[(h.n-k)%2], h.frames[0].Dims() > 0
}

// push keeps x.
func (h *history) push(w *walk, x engine.Tensor) {
	if !w.sizing {
		w.env.Ops.Copy(h.frames[h.n%2], x)
	}
	h.n++
}

// causal writes the convolution of x and, in a clip, of the two inputs before it to y, or adds it to y. in makes the
// input of x.
func (w *walk) causal(y, x engine.Tensor, in func(engine.Tensor) input, c *engine.Weight, p *past, add bool) {
	conv := func(x engine.Tensor, c *engine.Weight, add bool) {
		mark := w.env.Arena.Mark()
		w.conv3(y, in(x), c, add)
		w.env.Arena.Release(mark)
	}
	conv(x, c, add)
	if p == nil || !w.clip {
		return
	}
	h := w.history(p, x)
	for k, tap := range p.taps() {
		if before, ok := h.frame(k + 1); ok {
			conv(before, tap, true)
		}
	}
	h.push(w, x)
}

// overTime writes the convolution over time of x and the inputs in h to y, which may have more channels.
func (w *walk) overTime(y, x engine.Tensor, h *history, c *overTime) {
	w.env.Ops.Linear(pixels(y), pixels(x), c.Now, engine.Epilogue{})
	for k, tap := range []*engine.Weight{c.One, c.Two} {
		if before, ok := h.frame(k + 1); ok {
			w.env.Ops.Linear(pixels(y), pixels(before), tap, engine.Epilogue{Residual: pixels(y)})
		}
	}
}

// doubled makes two frames of the activation, but for the first of a clip, which stays and which later ones do not see.
// It returns functions that make each of them the activation. They are in memory that the caller releases.
func (w *walk) doubled(c *overTime) ([]func(), error) {
	if !w.clip {
		return []func(){nil}, nil
	}
	h := w.history(c, w.x)
	if !h.first {
		h.first = true
		return []func(){nil}, nil
	}
	y, x, n := w.x.Dim(1), w.x.Dim(2), w.x.Dim(3)
	both := w.alloc(y, x, 2*n)
	err := w.steps(func() {
		w.overTime(both, w.x, h, c)
		h.push(w, w.x)
	})
	frame := func(k int) func() {
		return func() {
			w.x = w.in(0, y, x, n)
			w.env.Ops.Copy(w.x, both.Slice(3, k*n, (k+1)*n))
		}
	}
	return []func(){frame(0), frame(1)}, err
}

// halved makes one frame of the activation and the two before it, and reports whether it did: for every second frame
// after the first of a clip, which stays as it is.
func (w *walk) halved(c *overTime) bool {
	h := w.history(c, w.x)
	made := h.n%2 == 0
	if !made || h.n == 0 {
		h.push(w, w.x)
		return made
	}
	y := w.in(1, w.x.Dim(1), w.x.Dim(2), w.x.Dim(3))
	w.overTime(y, w.x, h, c)
	h.push(w, w.x)
	w.moved(1, y)
	return true
}

// Frames returns how many of n pictures are encoded, and to how many latent frames.
func (c Config) Frames(n int) (pictures, latents int) {
	if c.Tokens != nil {
		if n <= 1 {
			return 1, 1
		}
		return n, (n+clipFrames-1)/clipFrames*chunkLatents - chunkDropped
	}
	step := c.Step()
	latents = 1 + (max(n, 1)-1)/step
	return 1 + (latents-1)*step, latents
}

// Pictures returns how many pictures n latent frames are decoded to.
func (c Config) Pictures(n int) int {
	if c.Tokens != nil { // the first of every chunk stands for one picture
		return n*c.Step() - (n+chunkLatents-1)/chunkLatents*(c.Step()-1)
	}
	return 1 + (n-1)*c.Step()
}

// DecodeClip decodes the rows of one band of a clip of latents with x columns.
func (v *VAE) DecodeClip(env Env, band Band, x int, c Clip) error {
	if err := env.alone("decode", band); err != nil {
		return err
	}
	mark, s := env.Arena.Mark(), v.Config.Scale()
	defer env.Arena.Release(mark)
	z := env.Arena.Alloc(env.DType, 1, band.Len(), x, v.Config.Latent())
	picture := env.Arena.Alloc(env.DType, 1, s*band.Len(), s*x, v.Config.Out)
	return runWalk(env, &v.Config, band, func(w *walk) error {
		w.clip = v.Config.Video && c.T > 1
		at := 0
		for i := range c.T {
			if !w.sizing {
				c.Load(i, z)
			}
			err := w.decode(&v.layers, z, picture, i == c.T-1, func() error {
				at++
				if w.sizing {
					return nil
				}
				return c.Store(at-1, picture)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// EncodeClip encodes the rows of one band of latent rows of a clip of pictures with x columns. Results are moments, as
// those of EncodeBand.
func (v *VAE) EncodeClip(env Env, band Band, x int, c Clip) error {
	if !v.Config.CanEncode {
		return fmt.Errorf("vae encode: the file has no encoder")
	}
	if err := env.alone("encode", band); err != nil {
		return err
	}
	mark, s := env.Arena.Mark(), v.Config.Scale()
	defer env.Arena.Release(mark)
	picture := env.Arena.Alloc(env.DType, 1, s*band.Len(), x, v.Config.In)
	moments := env.Arena.Alloc(env.DType, 1, band.Len(), x/s, 2*v.Config.Embed)
	return runWalk(env, &v.Config, band, func(w *walk) error {
		w.clip = v.Config.Video && c.T > 1
		at := 0
		for i := range c.T {
			if !w.sizing {
				c.Load(i, picture)
			}
			made, err := w.encode(&v.layers, picture, moments, i == c.T-1)
			if err == nil && made {
				if at++; !w.sizing {
					err = c.Store(at-1, moments)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// measuredFrames is how many frames of a clip show all that it takes.
const measuredFrames = 9

// DecodeClipBytes returns the arena size that DecodeClip needs for a clip of t latent frames.
func DecodeClipBytes(cfg Config, dtype engine.DType, band Band, x, t int) int {
	return measuredClip(cfg, dtype, band, x, t, (*VAE).DecodeClip)
}

// EncodeClipBytes returns the arena size that EncodeClip needs for a clip of t pictures.
func EncodeClipBytes(cfg Config, dtype engine.DType, band Band, x, t int) int {
	return measuredClip(cfg, dtype, band, x, t, (*VAE).EncodeClip)
}

func measuredClip(cfg Config, dtype engine.DType, band Band, x, t int,
	f func(*VAE, Env, Band, int, Clip) error,
) int {
	env := measuring(dtype, band)
	v := &VAE{Config: cfg, layers: newLayers(cfg)}
	_ = f(v, env, band, x, Clip{
		T: min(t, measuredFrames), Load: func(int, engine.Tensor) {}, Store: func(int, engine.Tensor) error { return nil },
	})
	return env.Arena.Peak()
}

// DecodeVideo decodes a clip of latents [C, T*Y, X], its frames one below the other, and calls emit for every picture
// [S*Y, S*X, Out] of raw values in order. It may not keep them.
func (v *VAE) DecodeVideo(env Env, latent []float32, t, y, x int, emit func(i int, picture []float32) error) error {
	c, s, band := v.Config.Latent(), v.Config.Scale(), Band{0, y, y}
	if err := v.checkLatent(latent, 1, t*y, x); err != nil {
		return err
	}
	if v.Config.Tokens != nil {
		env, free, err := env.arena(v.PieceBytes(env.DType, y, x, false))
		if err != nil {
			return err
		}
		defer free()
		return v.DecodeMosaic(env.inTurn, latent, t, y, x, emit)
	}
	env, free, err := env.arena(DecodeClipBytes(v.Config, env.DType, band, x, t))
	if err != nil {
		return err
	}
	defer free()
	picture := make([]float32, s*y*s*x*v.Config.Out)
	return v.DecodeClip(env, band, x, Clip{
		T: t, Load: func(i int, z engine.Tensor) { env.Ops.Upload(z, LatentRows(latent, c, t*y, x, i*y, (i+1)*y)) },
		Store: func(i int, result engine.Tensor) error {
			if err := env.Ops.Download(picture, result).Wait(); err != nil {
				return err
			}
			return emit(i, picture)
		},
	})
}

// EncodeVideo encodes pictures [B, Y, X, In] of -1..1 as one clip and returns latents [C, T*y, x] in VAE space, its
// frames one below the other. As many pictures as Frames says are encoded.
func (v *VAE) EncodeVideo(env Env, pictures []float32, b, y, x int) ([]float32, error) {
	c, s, size := v.Config.Embed, v.Config.Scale(), y*x*v.Config.In
	if v.Config.Tokens != nil {
		env, free, err := env.arena(v.PieceBytes(env.DType, y/s, x/s, true))
		if err != nil {
			return nil, err
		}
		defer free()
		return v.EncodeMosaic(env.inTurn, pictures, b, y, x)
	}
	b, t := v.Config.Frames(b)
	if y < s || x < s || y%s != 0 || x%s != 0 || len(pictures) < b*size {
		return nil, fmt.Errorf("vae encode: %d values for pictures [%d, %d, %d, %d]: sides must be multiples of %d",
			len(pictures), b, y, x, v.Config.In, s)
	}
	band := Band{0, y / s, y / s}
	env, free, err := env.arena(EncodeClipBytes(v.Config, env.DType, band, x, b))
	if err != nil {
		return nil, err
	}
	defer free()
	n := y / s * (x / s)
	out, moments := make([]float32, c*t*n), make([]float32, n*2*c)
	return out, v.EncodeClip(env, band, x, Clip{
		T: b, Load: func(i int, p engine.Tensor) { env.Ops.Upload(p, pictures[i*size:(i+1)*size]) },
		Store: func(i int, result engine.Tensor) error {
			if err := env.Ops.Download(moments, result).Wait(); err != nil {
				return err
			}
			for k := range c { // the first half of the moments is the mean
				for j := range n {
					out[(k*t+i)*n+j] = moments[j*2*c+k]
				}
			}
			return nil
		},
	})
}

// LatentRows returns the rows [from, to) of a latent [C, Y, X], channels last: [to-from, X, C].
func LatentRows(v []float32, c, y, x, from, to int) []float32 {
	out := make([]float32, 0, (to-from)*x*c)
	for i := from * x; i < to*x; i++ {
		for k := range c {
			out = append(out, v[k*y*x+i])
		}
	}
	return out
}
