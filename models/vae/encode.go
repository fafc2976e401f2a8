package vae

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/tile"
)

// Encode turns pictures [B, Y, X, 3] with values in -1..1 into latents [B, C, Y/S, X/S] in VAE space: the mode of the
// posterior, which is its mean. Sides must be multiples of Config.Scale() (see Config.CropToImage). It encodes whole
// pictures and ignores Exchange (see EncodeBand). Errors: no encoder in the file, and as for Decode.
func (v *VAE) Encode(env Env, picture []float32, b, y, x int) ([]float32, error) {
	c, s := v.Config.In, v.Config.Scale()
	switch {
	case !v.Config.CanEncode:
		return nil, fmt.Errorf("vae encode: the file has no encoder")
	case b < 0 || y < s || x < s || y%s != 0 || x%s != 0:
		return nil, fmt.Errorf("vae encode: picture of %d rows and %d columns: both must be multiples of %d", y, x, s)
	case len(picture) != b*y*x*c:
		return nil, fmt.Errorf("vae encode: %d values for pictures [%d, %d, %d, %d]", len(picture), b, y, x, c)
	}
	env.Exchange = nil
	env, free, err := env.arena(EncodeBytes(v.Config, env.DType, y, x))
	if err != nil {
		return nil, err
	}
	defer free()
	n, moments := y/s*(x/s), 2*v.Config.Embed
	out := make([]float32, 0, b*n*v.Config.Embed)
	host := make([]float32, n*moments)
	for i := range b {
		item := env
		item.Check = tile.Part(env.Check, i, b)
		p := picture[i*y*x*c : (i+1)*y*x*c]
		if err := item.run(host, p, v.EncodeBand, Band{0, y / s, y / s}, y, x, c); err != nil {
			return nil, err
		}
		for k := range v.Config.Embed { // the first half of the moments is the mean; [n, 2C] -> [C, n]
			for j := range n {
				out = append(out, host[j*moments+k])
			}
		}
	}
	return out, nil
}

// EncodeBand encodes the rows of one band of latent rows. picture [1, S*L, S*X, 3] holds their pixels. The result [1,
// L, X, 2C], mean and logarithm of the variance, stays in env.Arena until the caller releases it. If env.Exchange is
// nil, the band must be the whole latent. Both have type env.DType.
func (v *VAE) EncodeBand(env Env, picture engine.Tensor, band Band) (engine.Tensor, error) {
	s := v.Config.Scale()
	if picture.Dims() != 4 || picture.Dim(1) != s*band.Len() || picture.Dim(2)%s != 0 || picture.Dim(3) != v.Config.In ||
		picture.DType != env.DType {
		panic(&engine.ShapeError{
			Op: "vae.EncodeBand",
			Rule: fmt.Sprintf("picture must be [1, %d, X, %d] of %s, X a multiple of %d", s*band.Len(), v.Config.In, env.DType,
				s), Shapes: picture.String(),
		})
	}
	if !v.Config.CanEncode {
		return engine.Tensor{}, fmt.Errorf("vae encode: the file has no encoder")
	}
	if err := env.alone("encode", band); err != nil {
		return engine.Tensor{}, err
	}
	moments := env.Arena.Alloc(env.DType, 1, band.Len(), picture.Dim(2)/s, 2*v.Config.Embed)
	return moments, runWalk(env, &v.Config, band, func(w *walk) error {
		_, err := w.encode(&v.layers, picture, moments, true)
		return err
	})
}

// encode walks from a band of a picture to the moments of its posterior. made is false if they come with a later frame
// of the clip. No frame follows the last one.
func (w *walk) encode(l *layers, picture, moments engine.Tensor, last bool) (made bool, err error) {
	if l.Descent != nil {
		return w.descend(l, picture, moments, last)
	}
	e := l.Encoder
	err = w.steps(func() {
		if w.cfg.Folded {
			folded := w.alloc(picture.Dim(1)/2, picture.Dim(2)/2, square*w.cfg.In)
			eachPosition(picture, folded, func(part, packed engine.Tensor) { w.env.Ops.Copy(packed, part) })
			picture = folded
		}
		x := w.in(0, picture.Dim(1), picture.Dim(2), w.cfg.Channels)
		w.causal(x, picture, w.plain, e.ConvIn, e.PastIn, false)
		w.x = x
	})
	for i := 0; i < len(e.Down) && err == nil; i++ {
		level := e.Down[i]
		var kept engine.Tensor
		if kept, err = w.keep(level.Around); err == nil {
			err = w.blocks(level.Block)
		}
		made = true
		if s := level.Downsample; s != nil && err == nil {
			err = w.steps(func() {
				if made = w.downsample(s); s.Time != nil && w.clip {
					made = w.halved(s.Time)
				}
			})
		}
		switch {
		case err != nil:
		case level.Around != nil && made:
			err = w.steps(func() { w.addKept(level.Around, kept, false) })
		case !made:
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	if m := e.Mid; m != nil {
		err = w.steps(func() { w.resnet(&m.Block1) }, func() { w.attention(&m.Attn) }, func() { w.resnet(&m.Block2) })
	}
	if err != nil {
		return false, err
	}
	return true, w.steps(
		func() {
			t := w.alloc(w.x.Dim(1), w.x.Dim(2), 2*w.cfg.Z)
			w.causal(t, w.x, w.through(e.NormOut), e.ConvOut, e.PastOut, false)
			if w.cfg.Packed {
				wide := t
				t = w.alloc(moments.Dim(1), moments.Dim(2), square*wide.Dim(3))
				eachPosition(wide, t, func(part, packed engine.Tensor) { w.env.Ops.Copy(packed, part) })
			}
			if w.cfg.Quant {
				w.env.Ops.Linear(pixels(moments), pixels(t), l.Quant, engine.Epilogue{})
			} else {
				w.env.Ops.Copy(moments, t)
			}
		},
	)
}
