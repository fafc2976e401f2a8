package vae

import (
	"fmt"
	"math"

	"patchbay/engine"
)

// Tiles is the geometry of tiled work, in latent units for DecodeTiled and in pixels for EncodeTiled.
type Tiles struct{ Y, X, Overlap int }

// DecodeTiles returns the geometry that ComfyUI's VAEDecodeTiled node makes of its widgets tile_size and overlap
// (pixels): an overlap above a quarter of the tile is cut to that, and both are divided by the scale of the
// autoencoder.
func DecodeTiles(size, overlap, scale int) Tiles {
	if size < overlap*4 {
		overlap = size / 4
	}
	return Tiles{Y: size / scale, X: size / scale, Overlap: overlap / scale}
}

// DecodeTiled decodes latents [B, C, Y, X] in tiles and returns raw pictures [B, S*Y, S*X, 3] like Decode, with the
// memory of the largest tile. As in ComfyUI (comfy/sd.py, decode_tiled_) three passes with tiles of (2Y, X/2), (Y/2,
// 2X) and (Y, X) are averaged, each blended with linear ramps over the overlap. The result differs from Decode's,
// because tiles do not see each other.
func (v *VAE) DecodeTiled(env Env, latent []float32, b, y, x int, t Tiles) ([]float32, error) {
	c, s := v.Config.Latent(), v.Config.Scale()
	if b < 0 || y < 1 || x < 1 || len(latent) != b*c*y*x {
		return nil, fmt.Errorf("vae decode: %d values for a latent [%d, %d, %d, %d]: sides must be at least 1 and the "+
			"product must fit", len(latent), b, c, y, x)
	}
	g := tiling{c: c, out: v.Config.Out, y: y, x: x, up: float64(s)}
	size := s * y * s * x * v.Config.Out
	out := make([]float32, 0, b*size)
	for i := range b {
		item := channelsLast(latent[i*c*y*x:(i+1)*c*y*x], c, y*x)
		sum, err := g.passes(t, part(env.Check, i, b),
			func(tile []float32, ty, tx int, check func(int, int) error) ([]float32, error) {
				env := env
				env.Check = check
				return v.Decode(env, channelsFirst(tile, c, ty*tx), 1, ty, tx)
			}, item)
		if err != nil {
			return nil, err
		}
		out = append(out, sum...)
	}
	return out, nil
}

// EncodeTiled encodes pictures [B, Y, X, 3] in -1..1 in tiles (pixels) and returns latents [B, C, Y/S, X/S], with the
// passes (Y, X), (Y/2, 2X), (2Y, X/2) of ComfyUI's encode_tiled_ averaged.
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
	g := tiling{c: c, out: v.Config.Latent(), y: y, x: x, up: 1 / float64(s)}
	out := make([]float32, 0, b*y/s*(x/s)*g.out)
	for i := range b {
		sum, err := g.passes(t, part(env.Check, i, b),
			func(tile []float32, ty, tx int, check func(int, int) error) ([]float32, error) {
				env := env
				env.Check = check
				z, err := v.Encode(env, tile, 1, ty, tx)
				return channelsLast(z, g.out, ty/s*(tx/s)), err
			}, picture[i*y*x*c:(i+1)*y*x*c])
		if err != nil {
			return nil, err
		}
		out = append(out, channelsFirst(sum, g.out, y/s*(x/s))...)
	}
	return out, nil
}

// DecodeTiledBytes returns the size of the arena that DecodeTiled needs: that of the largest of its tiles.
func DecodeTiledBytes(cfg Config, dtype engine.DType, y, x int, t Tiles) int {
	n := 0
	for _, s := range t.shapes() {
		n = max(n, DecodeBytes(cfg, dtype, min(y, s.Y), min(x, s.X)))
	}
	return n
}

// shapes are the tiles of the three passes.
func (t Tiles) shapes() []Tiles {
	return []Tiles{{t.Y * 2, t.X / 2, t.Overlap}, {t.Y / 2, t.X * 2, t.Overlap}, t}
}

// tileFunc computes one tile [ty, tx, c] into [ty*up, tx*up, out].
type tileFunc func(tile []float32, ty, tx int, check func(done, total int) error) ([]float32, error)

// tiling is a picture [y, x, c] that becomes [y*up, x*up, out].
type tiling struct {
	c, out, y, x int
	up           float64
}

// scaled converts a length or position, rounding halves to even as Python does.
func (g tiling) scaled(n int) int { return int(math.RoundToEven(float64(n) * g.up)) }

// passes averages the three passes.
func (g tiling) passes(t Tiles, check func(int, int) error, f tileFunc, item []float32) ([]float32, error) {
	if t.Overlap < 0 || t.Y/2 <= t.Overlap || t.X/2 <= t.Overlap {
		return nil, fmt.Errorf("vae tiles: %d rows and %d columns with overlap %d: half a tile must be larger than the "+
			"overlap", t.Y, t.X, t.Overlap)
	}
	sum := make([]float32, g.scaled(g.y)*g.scaled(g.x)*g.out)
	for i, shape := range t.shapes() {
		one, err := g.pass(shape, part(check, i, 3), f, item)
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

// pass computes all tiles of one shape and blends them (comfy/utils.py, tiled_scale_multidim). A picture that fits into
// one tile is not cut.
func (g tiling) pass(t Tiles, check func(int, int) error, f tileFunc, item []float32) ([]float32, error) {
	if g.y <= t.Y && g.x <= t.X {
		return f(item, g.y, g.x, check)
	}
	rows, cols := starts(g.y, t.Y, t.Overlap), starts(g.x, t.X, t.Overlap)
	height, width := g.scaled(g.y), g.scaled(g.x)
	sum, weight := make([]float32, height*width*g.out), make([]float32, height*width)
	for i, y0 := range rows {
		for j, x0 := range cols {
			ty, tx := min(t.Y, g.y-y0), min(t.X, g.x-x0)
			tile := make([]float32, 0, ty*tx*g.c)
			for r := range ty {
				at := ((y0+r)*g.x + x0) * g.c
				tile = append(tile, item[at:at+tx*g.c]...)
			}
			done, err := f(tile, ty, tx, part(check, i*len(cols)+j, len(rows)*len(cols)))
			if err != nil {
				return nil, err
			}
			g.blend(sum, weight, done, g.scaled(y0), g.scaled(x0), g.scaled(ty), g.scaled(tx), g.scaled(t.Overlap))
		}
	}
	for i, w := range weight {
		for k := range g.out {
			sum[i*g.out+k] /= w
		}
	}
	return sum, nil
}

// starts returns where tiles of the given size begin on a side of n.
func starts(n, size, overlap int) []int {
	if n <= size {
		return []int{0}
	}
	var out []int
	for at := 0; at < n-overlap; at += size - overlap {
		out = append(out, at)
	}
	return out
}

// blend adds a tile [h, w, out] at (y, x) with weights that rise linearly over the overlap from every edge of the tile.
func (g tiling) blend(sum, weight, tile []float32, y, x, h, w, overlap int) {
	rows, cols := ramp(h, overlap), ramp(w, overlap)
	width := g.scaled(g.x)
	for r := range h {
		for c := range w {
			m := rows[r] * cols[c]
			at := (y+r)*width + x + c
			weight[at] += m
			for k := range g.out {
				sum[at*g.out+k] += tile[(r*w+c)*g.out+k] * m
			}
		}
	}
}

// ramp is the weight along one side of n: (t+1)/feather at distance t from either edge, both where the edges are near.
// A feather as long as the side leaves it flat.
func ramp(n, feather int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = 1
	}
	if feather >= n {
		return out
	}
	for t := range feather {
		a := float32(float64(t+1) / float64(feather))
		out[t] *= a
		out[n-1-t] *= a
	}
	return out
}

// channelsFirst reorders one item, [n, C] -> [C, n].
func channelsFirst(v []float32, c, n int) []float32 { return channelsLast(v, n, c) }
