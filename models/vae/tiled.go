package vae

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/tile"
)

// Tiles is a tile geometry, in latent units for DecodeTiled and in pixels for EncodeTiled.
type Tiles struct{ Y, X, Overlap int }

// DecodeTiles returns the geometry that ComfyUI's VAEDecodeTiled node derives from its widgets tile_size and overlap
// (in pixels): the overlap is limited to a quarter of the tile, and both are divided by the scale of the autoencoder.
func DecodeTiles(size, overlap, scale int) Tiles {
	if size < overlap*4 {
		overlap = size / 4
	}
	return Tiles{Y: size / scale, X: size / scale, Overlap: overlap / scale}
}

// DecodeTiled decodes latents [B, C, Y, X] in tiles and returns raw pictures [B, S*Y, S*X, 3] like Decode, with the
// memory of the largest tile. As in ComfyUI (comfy/sd.py, decode_tiled_) it averages three passes with tiles of (2Y,
// X/2), (Y/2, 2X) and (Y, X), each blended with linear ramps over the overlap. The result differs from Decode's,
// because tiles do not see each other.
func (v *VAE) DecodeTiled(env Env, latent []float32, b, y, x int, t Tiles) ([]float32, error) {
	c, s := v.Config.Latent(), v.Config.Scale()
	if err := v.checkLatent(latent, b, y, x); err != nil {
		return nil, err
	}
	g := tile.Grid{C: c, Out: v.Config.Out, Y: y, X: x, Up: float64(s)}
	size := s * y * s * x * v.Config.Out
	out := make([]float32, 0, b*size)
	for i := range b {
		item := channelsLast(latent[i*c*y*x:(i+1)*c*y*x], c, y*x)
		sum, err := passes(g, t, tile.Part(env.Check, i, b),
			func(piece []float32, ty, tx int, check func(int, int) error) ([]float32, error) {
				env := env
				env.Check = check
				return v.Decode(env, channelsFirst(piece, c, ty*tx), 1, ty, tx)
			}, item)
		if err != nil {
			return nil, err
		}
		out = append(out, sum...)
	}
	return out, nil
}

// EncodeTiled encodes pictures [B, Y, X, 3] in -1..1 in tiles t (in pixels) and returns latents [B, C, Y/S, X/S],
// averaging the passes (Y, X), (Y/2, 2X) and (2Y, X/2) of ComfyUI's encode_tiled_.
func (v *VAE) EncodeTiled(env Env, picture []float32, b, y, x int, t Tiles) ([]float32, error) {
	c, s := v.Config.In, v.Config.Scale()
	if b < 0 || y < s || x < s || y%s != 0 || x%s != 0 || len(picture) != b*y*x*c {
		return nil, fmt.Errorf("vae encode: %d values for pictures [%d, %d, %d, %d]: sides must be multiples of %d",
			len(picture), b, y, x, c, s)
	}
	if (t.Y/2)%s != 0 || (t.X/2)%s != 0 || t.Overlap%s != 0 {
		return nil, fmt.Errorf("vae encode: tile %dx%d with overlap %d: half a tile and the overlap must be multiples of %d",
			t.Y, t.X, t.Overlap, s)
	}
	g := tile.Grid{C: c, Out: v.Config.Latent(), Y: y, X: x, Up: 1 / float64(s)}
	out := make([]float32, 0, b*y/s*(x/s)*g.Out)
	for i := range b {
		sum, err := passes(g, t, tile.Part(env.Check, i, b),
			func(piece []float32, ty, tx int, check func(int, int) error) ([]float32, error) {
				env := env
				env.Check = check
				z, err := v.Encode(env, piece, 1, ty, tx)
				return channelsLast(z, g.Out, ty/s*(tx/s)), err
			}, picture[i*y*x*c:(i+1)*y*x*c])
		if err != nil {
			return nil, err
		}
		out = append(out, channelsFirst(sum, g.Out, y/s*(x/s))...)
	}
	return out, nil
}

// DecodeTiledBytes returns the arena size that DecodeTiled needs: that of its largest tile.
func DecodeTiledBytes(cfg Config, dtype engine.DType, y, x int, t Tiles) int {
	n := 0
	for _, s := range t.Shapes() {
		n = max(n, DecodeBytes(cfg, dtype, min(y, s.Y), min(x, s.X)))
	}
	return n
}

// Shapes returns the tile geometries of the three passes.
func (t Tiles) Shapes() []Tiles {
	return []Tiles{{t.Y * 2, t.X / 2, t.Overlap}, {t.Y / 2, t.X * 2, t.Overlap}, t}
}

// passes runs the three passes over an item and averages them.
func passes(g tile.Grid, t Tiles, check func(int, int) error, f tile.Func, item []float32) ([]float32, error) {
	if t.Overlap < 0 || t.Y/2 <= t.Overlap || t.X/2 <= t.Overlap {
		return nil, fmt.Errorf("vae tiles: %d rows and %d columns with overlap %d: half a tile must be larger than the "+
			"overlap", t.Y, t.X, t.Overlap)
	}
	sum := make([]float32, g.Scaled(g.Y)*g.Scaled(g.X)*g.Out)
	for i, shape := range t.Shapes() {
		one, err := g.Pass(tile.Size(shape), tile.Part(check, i, 3), f, item)
		if err != nil {
			return nil, err
		}
		for k, v := range one {
			sum[k] += v
		}
	}
	for k := range sum {
		sum[k] /= 3
	}
	return sum, nil
}

// channelsFirst reorders one item, [n, C] -> [C, n].
func channelsFirst(v []float32, c, n int) []float32 { return channelsLast(v, n, c) }
