package vae

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/tile"
)

// Decode turns latents [B, C, Y, X] in VAE space into pictures [B, S*Y, S*X, 3] with S = Config.Scale(), with raw
// values of about -1..1, not clamped (see ToImage). Items are decoded one after another. Errors: sizes that do not fit,
// and those of Check and the device.
func (v *VAE) Decode(env Env, latent []float32, b, y, x int) ([]float32, error) {
	c, s := v.Config.Latent(), v.Config.Scale()
	if err := v.checkLatent(latent, b, y, x); err != nil {
		return nil, err
	}
	env, free, err := env.arena(DecodeBytes(v.Config, env.DType, y, x))
	if err != nil {
		return nil, err
	}
	defer free()
	size := s * y * s * x * v.Config.Out
	out := make([]float32, b*size)
	for i := range b {
		item := env
		item.Check = tile.Part(env.Check, i, b)
		z := channelsLast(latent[i*c*y*x:(i+1)*c*y*x], c, y*x)
		if err := item.run(out[i*size:(i+1)*size], z, v.DecodeBand, Band{0, y, y}, y, x, c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkLatent returns an error unless latent has the values of b items of y rows and x columns.
func (v *VAE) checkLatent(latent []float32, b, y, x int) error {
	if c := v.Config.Latent(); b < 0 || y < 1 || x < 1 || len(latent) != b*c*y*x {
		return fmt.Errorf("vae decode: %d values for a latent [%d, %d, %d, %d]: sides must be at least 1 and the "+
			"product must fit", len(latent), b, c, y, x)
	}
	return nil
}

// run uploads one item as [1, y, x, c], applies f and downloads the result to out.
func (env Env) run(out, in []float32, f func(Env, engine.Tensor, Band) (engine.Tensor, error), band Band,
	y, x, c int,
) error {
	mark := env.Arena.Mark()
	defer env.Arena.Release(mark)
	t := env.Arena.Alloc(env.DType, 1, y, x, c)
	env.Ops.Upload(t, in)
	made, err := f(env, t, band)
	if err != nil {
		return err
	}
	return env.Ops.Download(out, made).Wait()
}

// alone returns an error for a partial band without an Exchange to reach the others.
func (env Env) alone(what string, band Band) error {
	if env.Exchange == nil && band.Len() != band.Total {
		return fmt.Errorf("vae %s: rows %d..%d of %d without an exchange with the other bands", what, band.Start, band.End,
			band.Total)
	}
	return nil
}

// DecodeBand decodes the rows of one band. z [1, L, X, C] holds these rows, and the result [1, S*L, S*X, 3] stays in
// env.Arena until the caller releases it. If env.Exchange is nil, the band must be the whole latent. z and the result
// have type env.DType.
func (v *VAE) DecodeBand(env Env, z engine.Tensor, band Band) (engine.Tensor, error) {
	if z.Dims() != 4 || z.Dim(1) != band.Len() || z.Dim(3) != v.Config.Latent() || z.DType != env.DType {
		panic(&engine.ShapeError{
			Op:     "vae.DecodeBand",
			Rule:   fmt.Sprintf("z must be [1, %d, X, %d] of %s", band.Len(), v.Config.Latent(), env.DType),
			Shapes: z.String(),
		})
	}
	if err := env.alone("decode", band); err != nil {
		return engine.Tensor{}, err
	}
	s := v.Config.Scale()
	picture := env.Arena.Alloc(env.DType, 1, s*z.Dim(1), s*z.Dim(2), v.Config.Out)
	return picture, runWalk(env, &v.Config, band, func(w *walk) error {
		return w.decode(&v.layers, z, picture, true, func() error { return nil })
	})
}

// decode walks from the latent rows z to the pictures of that latent frame, in order, and calls done after each. No
// frame follows the last one.
func (w *walk) decode(l *layers, z, picture engine.Tensor, last bool, done func() error) error {
	if l.Ascent != nil {
		return w.ascend(l, z, picture, last, done)
	}
	d := l.Decoder
	err := w.steps(
		func() { w.convIn(d, l.PostQuant, z) },
		func() { w.resnet(&d.Mid.Block1) },
		func() { w.attention(&d.Mid.Attn) },
		func() { w.resnet(&d.Mid.Block2) },
	)
	if err != nil {
		return err
	}
	return w.up(d, len(d.Up)-1, picture, done)
}

// up walks from level i to the picture. A level that makes two frames of one is followed by the rest for each of them.
func (w *walk) up(d *decoder, i int, picture engine.Tensor, done func() error) error {
	if i < 0 {
		if err := w.steps(func() { w.convOut(d, picture) }); err != nil {
			return err
		}
		return done()
	}
	mark, level := w.env.Arena.Mark(), d.Up[i]
	defer w.env.Arena.Release(mark)
	kept, err := w.keep(level.Around)
	if err == nil {
		err = w.blocks(level.Block)
	}
	if err != nil {
		return err
	}
	frames := []func(){nil} // which make each frame the activation
	if s := level.Upsample; s != nil && s.Time != nil {
		if frames, err = w.doubled(s.Time); err != nil {
			return err
		}
	}
	for k, frame := range frames {
		if frame != nil {
			err = w.steps(frame)
		}
		if s := level.Upsample; s != nil && err == nil {
			err = w.steps(func() { w.upsample(s) })
		}
		if level.Around != nil && err == nil {
			err = w.steps(func() { w.addKept(level.Around, kept, k < len(frames)-1) })
		}
		if err == nil {
			err = w.up(d, i-1, picture, done)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// convOut computes the picture from the last activation.
func (w *walk) convOut(d *decoder, picture engine.Tensor) {
	y := picture
	if w.cfg.Folded {
		y = w.alloc(w.x.Dim(1), w.x.Dim(2), square*w.cfg.Out)
	}
	w.causal(y, w.x, w.through(d.NormOut), d.ConvOut, d.PastOut, false)
	if w.cfg.Folded {
		eachPosition(picture, y, w.env.Ops.Copy)
	}
}

// blocks runs residual blocks.
func (w *walk) blocks(blocks []*resnet) error {
	for _, r := range blocks {
		if err := w.steps(func() { w.resnet(r) }); err != nil {
			return err
		}
	}
	return nil
}

// convIn computes the first activation from z.
func (w *walk) convIn(d *decoder, quant *engine.Weight, z engine.Tensor) {
	if w.cfg.Quant {
		t := w.alloc(z.Dim(1), z.Dim(2), w.cfg.positions()*w.cfg.Z)
		w.env.Ops.Linear(pixels(t), pixels(z), quant, engine.Epilogue{})
		if z = t; w.cfg.Packed {
			z = w.alloc(2*t.Dim(1), 2*t.Dim(2), w.cfg.Z)
			eachPosition(z, t, w.env.Ops.Copy)
		}
	}
	x := w.in(0, z.Dim(1), z.Dim(2), w.cfg.decoder()*w.cfg.Mult[len(w.cfg.Mult)-1])
	w.causal(x, z, w.plain, d.ConvIn, d.PastIn, false)
	w.x = x
}

// channelsLast reorders one item, [C, n] -> [n, C].
func channelsLast(v []float32, c, n int) []float32 {
	out := make([]float32, len(v))
	for k := range c {
		for i, f := range v[k*n : (k+1)*n] {
			out[i*c+k] = f
		}
	}
	return out
}
