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

// ClipTiles is a tile geometry with latent frames and how far neighbors in time overlap.
type ClipTiles struct {
	Tiles
	T, OverlapT int
}

// Least returns the shortest side of the tiles of y rows and x columns.
func (t Tiles) Least(y, x int) int {
	return min(tile.Least(y, t.Y, t.Overlap), tile.Least(x, t.X, t.Overlap))
}

// DecodeClipTiles is DecodeTiles for clips, with the widgets temporal_size and temporal_overlap (in pictures): the
// overlap is halved if the size is less than twice it, both are divided by the pictures of a latent frame, and tiles
// have at least two frames, of which at least one and at most half overlap.
func DecodeClipTiles(size, overlap, frames, overlapFrames int, cfg Config) ClipTiles {
	if frames < 2*overlapFrames {
		overlapFrames /= 2
	}
	t := max(2, frames/cfg.Step())
	return ClipTiles{DecodeTiles(size, overlap, cfg.Scale()), t, max(1, min(t/2, overlapFrames/cfg.Step()))}
}

// DecodeClipTiled decodes a clip of latents [C, t*y, x] in tiles and returns raw pictures like DecodeVideo, one after
// the other, with the memory of the largest tile. Every tile is a clip of its own, whose first frame is a first frame.
func (v *VAE) DecodeClipTiled(env Env, latent []float32, t, y, x int, tiles ClipTiles) ([]float32, error) {
	c, s := v.Config.Latent(), v.Config.Scale()
	if err := v.checkLatent(latent, 1, t*y, x); err != nil {
		return nil, err
	}
	if tiles.Overlap < 0 || tiles.Y <= tiles.Overlap || tiles.T <= tiles.OverlapT {
		return nil, fmt.Errorf("vae tiles: %d rows and %d frames with overlaps %d and %d: tiles must be larger", tiles.Y,
			tiles.T, tiles.Overlap, tiles.OverlapT)
	}
	g := tile.Clip{
		Grid: tile.Grid{C: c, Out: v.Config.Out, Y: y, X: x, Up: float64(s)}, T: t, Long: v.Config.Pictures,
		From: func(i int) int { return i * v.Config.Step() },
	}
	size := tile.ClipSize{Size: tile.Size(tiles.Tiles), T: tiles.T, Overlap: tiles.OverlapT}
	return g.Pass(size, env.Check, func(piece []float32, tt, ty, tx int, check func(int, int) error) ([]float32, error) {
		env := env
		env.Check = check
		var out []float32
		err := v.DecodeVideo(env, channelsFirst(piece, c, tt*ty*tx), tt, ty, tx, func(_ int, picture []float32) error {
			out = append(out, picture...)
			return nil
		})
		return out, err
	}, LatentRows(latent, c, t*y, x, 0, t*y))
}

// EncodeClipTiles is the geometry of VAEEncodeTiled for clips, in pixels and pictures; temporal_size and
// temporal_overlap become numbers of pictures that are encoded without a rest.
func EncodeClipTiles(size, overlap, frames, overlapFrames int, cfg Config) ClipTiles {
	_, t := cfg.Frames(frames)
	_, shared := cfg.Frames(overlapFrames)
	t = max(2, t)
	return ClipTiles{
		Tiles{Y: size, X: size, Overlap: overlap}, cfg.Pictures(t), cfg.Pictures(max(1, min(t/2, shared))),
	}
}

// EncodeClipTiled encodes pictures [T, Y, X, In] of -1..1 as one clip in tiles and returns latents like EncodeVideo,
// with the memory of the largest tile. Every tile is a clip of its own.
func (v *VAE) EncodeClipTiled(env Env, pictures []float32, n, y, x int, tiles ClipTiles) ([]float32, error) {
	c, s := v.Config.Latent(), v.Config.Scale()
	n, t := v.Config.Frames(n)
	if y < s || x < s || y%s != 0 || x%s != 0 || len(pictures) < n*y*x*v.Config.In {
		return nil, fmt.Errorf("vae encode: %d values for pictures [%d, %d, %d, %d]: sides must be multiples of %d",
			len(pictures), n, y, x, v.Config.In, s)
	}
	if tiles.Overlap < 0 || tiles.Y <= tiles.Overlap || tiles.T <= tiles.OverlapT || tiles.Y%s+tiles.Overlap%s != 0 {
		return nil, fmt.Errorf("vae tiles: %d rows and %d pictures with overlaps %d and %d: tiles must be larger, and "+
			"multiples of %d", tiles.Y, tiles.T, tiles.Overlap, tiles.OverlapT, s)
	}
	g := tile.Clip{
		Grid: tile.Grid{C: v.Config.In, Out: c, Y: y, X: x, Up: 1 / float64(s)}, T: n,
		Long: func(i int) int {
			_, latents := v.Config.Frames(i)
			return latents
		},
		From: func(i int) int { return i / v.Config.Step() },
	}
	size := tile.ClipSize{Size: tile.Size(tiles.Tiles), T: tiles.T, Overlap: tiles.OverlapT}
	encode := func(piece []float32, tt, ty, tx int, check func(int, int) error) ([]float32, error) {
		env := env
		env.Check = check
		z, err := v.EncodeVideo(env, piece, tt, ty, tx)
		return channelsLast(z, c, g.Long(tt)*(ty/s)*(tx/s)), err
	}
	out, err := g.Pass(size, env.Check, encode, pictures[:n*y*x*v.Config.In])
	return channelsFirst(out, c, t*(y/s)*(x/s)), err
}

// DecodeTiled decodes latents [B, C, Y, X] in tiles and returns raw pictures [B, S*Y, S*X, 3] like Decode, with the
// memory of the largest tile. It averages the passes over t.Shapes, each blended with linear ramps over the overlap.
// The result differs from Decode's, because tiles do not see each other.
func (v *VAE) DecodeTiled(env Env, latent []float32, b, y, x int, t Tiles) ([]float32, error) {
	c, s := v.Config.Latent(), v.Config.Scale()
	if err := v.checkLatent(latent, b, y, x); err != nil {
		return nil, err
	}
	g, shapes := tile.Grid{C: c, Out: v.Config.Out, Y: y, X: x, Up: float64(s)}, t.Shapes(v.Config)
	size := s * y * s * x * v.Config.Out
	out := make([]float32, 0, b*size)
	for i := range b {
		item := channelsLast(latent[i*c*y*x:(i+1)*c*y*x], c, y*x)
		sum, err := passes(g, shapes, tile.Part(env.Check, i, b),
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

// EncodeTiled encodes pictures [B, Y, X, 3] in -1..1 in tiles t (in pixels) and returns latents [B, C, Y/S, X/S]; see
// DecodeTiled. The sides of all tiles and the overlap must be multiples of S.
func (v *VAE) EncodeTiled(env Env, picture []float32, b, y, x int, t Tiles) ([]float32, error) {
	c, s := v.Config.In, v.Config.Scale()
	if b < 0 || y < s || x < s || y%s != 0 || x%s != 0 || len(picture) != b*y*x*c {
		return nil, fmt.Errorf("vae encode: %d values for pictures [%d, %d, %d, %d]: sides must be multiples of %d",
			len(picture), b, y, x, c, s)
	}
	for _, shape := range t.Shapes(v.Config) {
		if shape.Y%s != 0 || shape.X%s != 0 || shape.Overlap%s != 0 {
			return nil, fmt.Errorf("vae encode: tiles of %dx%d with overlap %d: all must be multiples of %d", shape.Y, shape.X,
				shape.Overlap, s)
		}
	}
	g, shapes := tile.Grid{C: c, Out: v.Config.Latent(), Y: y, X: x, Up: 1 / float64(s)}, t.Shapes(v.Config)
	out := make([]float32, 0, b*y/s*(x/s)*g.Out)
	for i := range b {
		sum, err := passes(g, shapes, tile.Part(env.Check, i, b),
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
	for _, s := range t.Shapes(cfg) {
		n = max(n, DecodeBytes(cfg, dtype, min(y, s.Y), min(x, s.X)))
	}
	return n
}

// Shapes returns the tile geometries of the passes that are averaged, as in ComfyUI (comfy/sd.py): one for an
// autoencoder of videos (decode_tiled_3d, encode_tiled_3d; a single frame is not cut in time), for others (2Y, X/2),
// (Y/2, 2X) and (Y, X) (decode_tiled_, encode_tiled_).
func (t Tiles) Shapes(cfg Config) []Tiles {
	if cfg.Wan && !cfg.Shortcuts {
		return []Tiles{t}
	}
	return []Tiles{{t.Y * 2, t.X / 2, t.Overlap}, {t.Y / 2, t.X * 2, t.Overlap}, t}
}

// passes runs a pass of each shape over an item and averages them.
func passes(g tile.Grid, shapes []Tiles, check func(int, int) error, f tile.Func, item []float32) ([]float32, error) {
	sum := make([]float32, g.Scaled(g.Y)*g.Scaled(g.X)*g.Out)
	for i, t := range shapes {
		if t.Overlap < 0 || t.Y <= t.Overlap || t.X <= t.Overlap {
			return nil, fmt.Errorf("vae tiles: %d rows and %d columns with overlap %d: tiles must be larger than the overlap",
				t.Y, t.X, t.Overlap)
		}
		one, err := g.Pass(tile.Size(t), tile.Part(check, i, len(shapes)), f, item)
		if err != nil {
			return nil, err
		}
		for k, v := range one {
			sum[k] += v
		}
	}
	for k := range sum {
		sum[k] /= float32(len(shapes))
	}
	return sum, nil
}

// channelsFirst reorders one item, [n, C] -> [C, n].
func channelsFirst(v []float32, c, n int) []float32 { return channelsLast(v, n, c) }
