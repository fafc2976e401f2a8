package parallel

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/vae"
)

// Decode turns latents [b, C, y, x] in VAE space into pictures [b, S*y, S*x, 3] as vae.Decode does, split over ranks in bands of latent rows: rows at
// the edges of a band are exchanged before every convolution, group-norm statistics are summed, the attention gathers keys and values. The picture
// equals the one-rank picture to rounding. One rank, or more ranks than rows, is no error: what cannot be split is not.
func (l *Local) Decode(net *vae.VAE, latent []float32, b, y, x, ranks int) ([]float32, error) {
	ranks = min(ranks, y)
	if ranks <= 1 {
		arena, err := l.Arena(vae.DecodeBytes(net.Config, engine.F32, y, x))
		if err != nil {
			return nil, err
		}
		return net.Decode(vae.Env{Ops: l.Ops, Arena: arena, Check: func(int, int) error { return l.Check() }}, latent, b, y, x)
	}
	c, s := net.Config.Latent(), net.Config.Scale()
	if len(latent) != b*c*y*x {
		return nil, fmt.Errorf("vae decode: %d values for a latent [%d, %d, %d, %d]", len(latent), b, c, y, x)
	}
	out := make([]float32, b*s*y*s*x*net.Config.Out)
	rows := balanced(y, ranks)
	ends := NewLocal("vae", ranks, rendezvous)
	g := NewGroup(func(err error) { ends[0].Abort(err) })
	for r, end := range ends {
		g.Go(fmt.Sprintf("vae band %d", r), func() error {
			ops, err := l.newOps(r, ranks)
			if err != nil {
				return err
			}
			d := bandDecoder{net: net, ops: ops, comm: end, band: vae.Band{Start: rows[r].Start, End: rows[r].End, Total: y}, x: x, check: l.Check}
			return d.items(latent, out, b)
		})
	}
	return out, g.Wait()
}

// bandDecoder is one rank's part of a split decode.
type bandDecoder struct {
	net   *vae.VAE
	ops   engine.Ops
	comm  *LocalComm
	band  vae.Band
	x     int
	check func() error
}

// items decodes the band's rows of b items of latent into their place in out.
func (d *bandDecoder) items(latent, out []float32, b int) error {
	cfg, y, x := d.net.Config, d.band.Total, d.x
	c, s := cfg.Latent(), cfg.Scale()
	bytes := vae.BandBytes(cfg, engine.F32, d.band, x)
	mem, err := d.ops.Alloc(bytes)
	if err != nil {
		return &Error{Code: OutOfMemory, Text: fmt.Sprintf("decoding needs %d MB for a band of the picture, and the system does not give them: use a smaller picture", bytes>>20), Cause: err}
	}
	defer d.ops.Free(mem)
	arena := engine.NewArena("vae band", mem, bytes)
	env := vae.Env{Ops: d.ops, Arena: arena, Check: func(int, int) error { return d.check() }, Exchange: d.exchange()}
	n := d.band.End - d.band.Start
	for i := range b {
		mark := arena.Mark()
		z := arena.Alloc(engine.F32, 1, n, x, c)
		d.ops.Upload(z, bandRows(latent[i*c*y*x:(i+1)*c*y*x], c, y, x, d.band))
		picture, err := d.net.DecodeBand(env, z, d.band)
		if err != nil {
			return err
		}
		row := s * x * cfg.Out
		at := i*s*y*row + s*d.band.Start*row
		if err := d.ops.Download(out[at:at+s*n*row], picture).Wait(); err != nil {
			return err
		}
		arena.Release(mark)
	}
	return nil
}

// bandRows picks rows of a latent and puts channels last: [C, Y, X] -> [L, X, C].
func bandRows(v []float32, c, y, x int, band vae.Band) []float32 {
	out := make([]float32, 0, (band.End-band.Start)*x*c)
	for yi := band.Start; yi < band.End; yi++ {
		for xi := range x {
			for ci := range c {
				out = append(out, v[(ci*y+yi)*x+xi])
			}
		}
	}
	return out
}

// exchange is what the bands need from each other.
func (d *bandDecoder) exchange() *vae.Exchange {
	me, size := d.comm.Rank(), d.comm.Size()
	return &vae.Exchange{
		Halo: func(x, above, below engine.Tensor) {
			up, down := me-1, me+1
			if down == size {
				down = -1
			}
			d.comm.SendRecv(above, up, x.Slice(1, x.Dim(1)-1, x.Dim(1)), down)
			d.comm.SendRecv(below, down, x.Slice(1, 0, 1), up)
		},
		Sum: func(stats engine.Tensor) { d.comm.AllReduce(stats) },
		Gather: func(full, part engine.Tensor) {
			counts := make([]int, size)
			for r, rows := range balanced(d.band.Total, size) {
				counts[r] = full.Len() / d.band.Total * rows.Len()
			}
			d.comm.AllGather(full, part, counts)
		},
	}
}
