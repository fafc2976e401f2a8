package parallel

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/vae"
	"patchbay/parallel/comm"
)

// DecodeClips turns clips of latents [b, C, t*y, x] in VAE space, their frames one below the other, into their pictures
// [b*n, S*y, S*x, Out], n = vae.Config.Pictures(t), split over ranks as Decode is, or by tiles. One picture at a time
// is on a device, or a tile of some.
func (l *Workspace) DecodeClips(net *vae.VAE, latent []float32, b, t, y, x, ranks int) ([]float32, error) {
	c, s, n := net.Config.Latent(), net.Config.Scale(), net.Config.Pictures(t)
	if b < 1 || t < 1 || y < 1 || x < 1 || len(latent) != b*c*t*y*x {
		return nil, fmt.Errorf("vae decode: %d values for clips [%d, %d, %d, %d, %d]", len(latent), b, c, t, y, x)
	}
	row := s * s * x * net.Config.Out // pixels of one latent row
	out := make([]float32, b*n*y*row)
	if net.Config.Tokens != nil {
		each, item, size := l.tiles("decoding", ranks, net.PieceBytes(l.DType, y, x, false)), len(latent)/b, y*row
		for i := range b {
			err := net.DecodeMosaic(each, latent[i*item:(i+1)*item], t, y, x, func(f int, picture []float32) error {
				copy(out[(i*n+f)*size:], picture)
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return out, l.clips("decoding", ranks, y, b, func(rows vae.Band) int {
		return vae.DecodeClipBytes(net.Config, l.DType, rows, x, t)
	}, func(env vae.Env, rows vae.Band, i int) error {
		item := latent[i*c*t*y*x : (i+1)*c*t*y*x]
		return net.DecodeClip(env, rows, x, vae.Clip{
			T: t, Load: func(f int, z engine.Tensor) {
				env.Ops.Upload(z, vae.LatentRows(item, c, t*y, x, f*y+rows.Start, f*y+rows.End))
			},
			Store: func(f int, picture engine.Tensor) error {
				at := ((i*n+f)*y + rows.Start) * row
				return env.Ops.Download(out[at:at+rows.Len()*row], picture).Wait()
			},
		})
	})
}

// EncodeClip turns n pictures [n, y, x, In] with values in -1..1, the frames of one clip, into a clip of latents
// [C, t*y/S, x/S] and returns t, as vae.EncodeVideo does, split over ranks as Encode is.
func (l *Workspace) EncodeClip(net *vae.VAE, pictures []float32, n, y, x, ranks int) (out []float32, t int, err error) {
	c, s, in := net.Config.Embed, net.Config.Scale(), net.Config.In
	n, t = net.Config.Frames(n)
	if y < s || x < s || y%s != 0 || x%s != 0 || len(pictures) < n*y*x*in {
		return nil, 0, fmt.Errorf("vae encode: %d values for pictures [%d, %d, %d, %d]: sides must be multiples of %d",
			len(pictures), n, y, x, in, s)
	}
	ly, lx := y/s, x/s
	if net.Config.Tokens != nil {
		out, err = net.EncodeMosaic(l.tiles("encoding", ranks, net.PieceBytes(l.DType, ly, lx, true)), pictures, n, y, x)
		return out, t, err
	}
	out = make([]float32, c*t*ly*lx)
	return out, t, l.clips("encoding", ranks, ly, 1, func(rows vae.Band) int {
		return vae.EncodeClipBytes(net.Config, l.DType, rows, x, n)
	}, func(env vae.Env, rows vae.Band, _ int) error {
		moments := make([]float32, rows.Len()*lx*2*c)
		return net.EncodeClip(env, rows, x, vae.Clip{
			T: n, Load: func(f int, p engine.Tensor) {
				at := (f*y + s*rows.Start) * x * in
				env.Ops.Upload(p, pictures[at:at+p.Len()])
			},
			Store: func(f int, result engine.Tensor) error {
				if err := env.Ops.Download(moments, result).Wait(); err != nil {
					return err
				}
				for j := range rows.Len() * lx { // the first half of the moments is the mean
					for k := range c {
						out[((k*t+f)*ly+rows.Start)*lx+j] = moments[j*2*c+k]
					}
				}
				return nil
			},
		})
	})
}

// clips runs f for each of the items on ranks that each have a band of y latent rows, with memory of the size that need
// returns.
func (l *Workspace) clips(what string, ranks, y, items int, need func(vae.Band) int,
	f func(env vae.Env, rows vae.Band, item int) error,
) error {
	if ranks = min(ranks, y, l.bands()); ranks > 1 {
		return l.banded(what, ranks, y, func(d *band) error {
			return d.each(need(d.rows), items, func(env vae.Env, i int) error { return f(env, d.rows, i) })
		})
	}
	rows := vae.Band{Start: 0, End: y, Total: y}
	env, err := l.autoencoder(need(rows))
	for i := 0; i < items && err == nil; i++ {
		err = f(env, rows, i)
	}
	return err
}

// tiles returns what runs pieces of work, each with memory of the given size in bytes, in turn on ranks that each have
// Ops of their own.
func (l *Workspace) tiles(what string, ranks, bytes int) vae.Each {
	return func(n int, f func(env vae.Env, i int) error) error {
		ranks := min(ranks, n, l.bands())
		if ranks <= 1 {
			env, err := l.autoencoder(bytes)
			for i := 0; i < n && err == nil; i++ {
				mark := env.Arena.Mark()
				err = f(env, i)
				env.Arena.Release(mark)
			}
			return err
		}
		return l.joined("vae", ranks, func(r int, ops engine.Ops, end comm.Comm) error {
			d := &band{l, what, ops, end, vae.Band{}}
			return d.each(bytes, (n-r+ranks-1)/ranks, func(env vae.Env, i int) error {
				env.Exchange = nil // tiles do not see each other
				return f(env, r+i*ranks)
			})
		})
	}
}
