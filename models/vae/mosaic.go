package vae

import (
	"fmt"
	"slices"

	"patchbay/engine"
)

// An autoencoder with a decoder of tokens works on small pieces of a video, which know nothing of each other: tiles of
// 256 pixels, whose overlaps are blended, and chunks of frames. Encoding takes clips of 17 frames, the last one filled
// up with its last frame, and drops the last 3 latent frames. Decoding takes 7 latent frames at a time, 5 of which are
// new; the first 3 of the 4 frames that the first of 5 becomes are dropped, and the 5 frames that two chunks make are
// blended.

const (
	tileSide     = 16 // latent pixels
	tileOverlap  = 4  // the least
	clipFrames   = 17
	chunkLatents = 5 // in clipFrames
	chunkMore    = 2 // latents of the next chunk
	chunkDropped = chunkLatents - chunkMore
)

// Each runs n independent pieces of work, each with an environment that no other has at the time. Their memory in the
// arena is released after each.
type Each func(n int, f func(env Env, i int) error) error

// inTurn runs pieces of work one after another.
func (env Env) inTurn(n int, f func(env Env, i int) error) error {
	for i := range n {
		mark := env.Arena.Mark()
		err := f(env, i)
		env.Arena.Release(mark)
		if err != nil {
			return err
		}
	}
	return nil
}

// span is the latent pixels of a tile on one axis, of which the first ones are the last of the tile before, too.
type span struct{ start, size, overlap int }

// spans divides n latent pixels into equal tiles.
func spans(n int) []span {
	if n <= tileSide {
		return []span{{0, n, 0}}
	}
	count := (n + tileSide - 1) / tileSide
	for count*tileSide-(count-1)*tileOverlap < n {
		count++
	}
	out := make([]span, count)
	more := count*tileSide - (count-1)*tileOverlap - n
	for i := range out {
		out[i].size = tileSide
		if i > 0 {
			out[i].overlap = tileOverlap + (more+count-2-(i-1))/(count-1)
			out[i].start = out[i-1].start + tileSide - out[i].overlap
		}
	}
	return out
}

// mosaic computes frames [n, unit*y, unit*x, c] of y x x latent pixels in tiles, each made by the function tile, and
// blends what overlaps.
func mosaic(each Each, y, x, unit, n, c int, tile func(env Env, ys, xs span) ([]float32, error)) ([]float32, error) {
	rows, columns := spans(y), spans(x)
	out := make([]float32, n*y*unit*x*unit*c)
	var above [][]float32
	for i, ys := range rows {
		made := make([][]float32, len(columns))
		err := each(len(columns), func(env Env, j int) (err error) {
			made[j], err = tile(env, ys, columns[j])
			return err
		})
		if err != nil {
			return nil, err
		}
		for j, xs := range columns {
			piece, row := made[j], xs.size*unit*c
			if i > 0 || j > 0 {
				piece = slices.Clone(piece)
			}
			if i > 0 {
				ramp(piece, above[j], n, ys.size*unit, rows[i-1].size*unit, row, ys.overlap*unit)
			}
			if j > 0 {
				ramp(piece, made[j-1], n*ys.size*unit, xs.size*unit, columns[j-1].size*unit, c, xs.overlap*unit)
			}
			for f := range n {
				for r := range ys.size * unit { // later tiles overwrite what overlaps
					at := ((f*y+ys.start)*unit+r)*x*unit + xs.start*unit
					copy(out[at*c:], piece[(f*ys.size*unit+r)*row:][:row])
				}
			}
		}
		above = made
	}
	return out, nil
}

// ramp blends the first values of b with the last ones of a, [count, size, k] and [count, before, k]: overlap of them,
// from a to b.
func ramp(b, a []float32, count, size, before, k, overlap int) {
	overlap = min(overlap, size, before)
	for i := range count {
		for p := range overlap {
			part := float32(p) / float32(overlap)
			to, from := b[(i*size+p)*k:][:k], a[(i*before+before-overlap+p)*k:][:k]
			for j := range to {
				to[j] = from[j]*(1-part) + to[j]*part
			}
		}
	}
}

// PieceBytes returns the arena size that a piece of DecodeMosaic or EncodeMosaic needs, for a video of y x x latent
// pixels.
func (v *VAE) PieceBytes(dtype engine.DType, y, x int, encode bool) int {
	y, x = min(y, tileSide), min(x, tileSide)
	if encode {
		y, x = max(y, 2), max(x, 2) // EncodeMosaic refuses smaller pictures
		return EncodeClipBytes(v.Config, dtype, Band{0, y, y}, v.Config.Scale()*x, clipFrames)
	}
	a := engine.NewMeasuringArena("vae")
	v.Config.tokenWork(a, dtype, (chunkLatents+chunkMore)*y*x, v.layers.Tokens.Blocks[0].Down.K())
	return a.Peak()
}

// DecodeMosaic is DecodeVideo of an autoencoder with a decoder of tokens (Config.Tokens), on environments that each
// provides.
func (v *VAE) DecodeMosaic(each Each, latent []float32, t, y, x int, emit func(i int, picture []float32) error) error {
	c, s, step, out := v.Config.Latent(), v.Config.Scale(), v.Config.Step(), v.Config.Out
	if err := v.checkLatent(latent, 1, t*y, x); err != nil {
		return err
	}
	kept := []int{step - 1} // of a chunk's frames
	if t > 1 {
		kept = nil
		for f := range step * (chunkLatents + chunkMore) {
			if f%(step*chunkLatents) >= step-1 {
				kept = append(kept, f)
			}
		}
	}
	chunk := func(first int) ([]float32, error) { // [kept, s*y, s*x, out]
		return mosaic(each, y, x, s, len(kept), out, func(env Env, ys, xs span) ([]float32, error) {
			n := 1
			if t > 1 {
				n = chunkLatents + chunkMore
			}
			z := make([]float32, 0, n*ys.size*xs.size*c)
			for f := range n {
				frame := min(first+f, t-1) // the last one is repeated
				for r := range ys.size {
					at := (frame*y+ys.start+r)*x + xs.start
					for p := range xs.size {
						for k := range c {
							z = append(z, latent[k*t*y*x+at+p]*v.Config.Tokens.Std[k]+v.Config.Tokens.Mean[k])
						}
					}
				}
			}
			tokens, err := v.decodeTokens(env, z, n, ys.size, xs.size)
			return v.Config.unboxed(tokens, kept, ys.size, xs.size), err
		})
	}
	size, at, total := s*y*s*x*out, 0, v.Config.Pictures(t)
	write := func(frames []float32) error {
		for ; len(frames) > 0 && at < total; at++ {
			for i, f := range frames[:size] { // as raw values, which ToImage makes 0..1
				frames[i] = 2*(f*pixelStd(i%out)+pixelMean(i%out)) - 1
			}
			if err := emit(at, frames[:size]); err != nil {
				return err
			}
			frames = frames[size:]
		}
		return nil
	}
	var last []float32 // the frames that the chunk before has made too
	for first := 0; at < total; first += chunkLatents {
		frames, err := chunk(first)
		if err != nil {
			return err
		}
		if last != nil {
			n := len(last) / size
			ramp(frames, last, 1, n, n, size, n)
		}
		whole := frames
		if t > 1 && first+chunkLatents+chunkMore < t { // not the last chunk
			whole = frames[:clipFrames*size]
		}
		last = frames[len(whole):]
		if err := write(whole); err != nil {
			return err
		}
	}
	return nil
}

// unboxed puts the boxes of tokens [T*y*x, P] together to those of their frames that are kept: [kept, S*y, S*x, Out].
func (c Config) unboxed(tokens []float32, kept []int, y, x int) []float32 {
	s, step := c.Scale(), c.Step()
	out := make([]float32, 0, len(kept)*s*y*s*x*c.Out)
	for _, f := range kept {
		if len(tokens) == 0 {
			break
		}
		for r := range s * y {
			for p := range s * x {
				box := tokens[((f/step*y+r/s)*x+p/s)*c.box():]
				for k := range c.Out {
					out = append(out, box[((k*step+f%step)*s+r%s)*s+p%s])
				}
			}
		}
	}
	return out
}

// EncodeMosaic is EncodeVideo of an autoencoder with a decoder of tokens, on environments that each provides.
func (v *VAE) EncodeMosaic(each Each, pictures []float32, b, y, x int) ([]float32, error) {
	c, s, in := v.Config.Embed, v.Config.Scale(), v.Config.In
	_, t := v.Config.Frames(b)
	if y < 2*s || x < 2*s || y%s != 0 || x%s != 0 || b < 1 || len(pictures) < b*y*x*in {
		return nil, fmt.Errorf("vae encode: %d values for pictures [%d, %d, %d, %d]: sides must be multiples of %d, at "+
			"least %d", len(pictures), b, y, x, in, s, 2*s)
	}
	ly, lx, n, made := y/s, x/s, clipFrames, chunkLatents
	if b == 1 {
		n, made = 1, 1
	}
	out := make([]float32, c*t*ly*lx)
	for first := 0; first < b; first += n {
		means, err := mosaic(each, ly, lx, 1, made, c, func(env Env, ys, xs span) ([]float32, error) {
			var frames []float32
			moments := make([]float32, ys.size*xs.size*2*c)
			err := v.EncodeClip(env, Band{0, ys.size, ys.size}, s*xs.size, Clip{
				T: n, Load: func(f int, tile engine.Tensor) {
					env.Ops.Upload(tile, v.Config.pixelsOf(pictures[min(first+f, b-1)*y*x*in:], x, ys, xs))
				},
				Store: func(_ int, result engine.Tensor) error {
					if err := env.Ops.Download(moments, result).Wait(); err != nil {
						return err
					}
					for i := 0; i < len(moments); i += 2 * c { // the first half of the moments is the mean
						frames = append(frames, moments[i:i+c]...)
					}
					return nil
				},
			})
			return frames, err
		})
		if err != nil {
			return nil, err
		}
		for f := range min(made, t-first/n*made) {
			for p := range ly * lx {
				for k := range c {
					mean := means[(f*ly*lx+p)*c+k]
					out[(k*t+first/n*made+f)*ly*lx+p] = (mean - v.Config.Tokens.Mean[k]) / v.Config.Tokens.Std[k]
				}
			}
		}
	}
	return out, nil
}

// pixelsOf returns a tile of a picture of -1..1, normalized as the encoder reads it.
func (c Config) pixelsOf(picture []float32, x int, ys, xs span) []float32 {
	s := c.Scale()
	out := make([]float32, 0, ys.size*s*xs.size*s*c.In)
	for r := range ys.size * s {
		at := ((ys.start*s+r)*x + xs.start*s) * c.In
		for i, f := range picture[at : at+xs.size*s*c.In] {
			out = append(out, ((f+1)*0.5-pixelMean(i%c.In))/pixelStd(i%c.In))
		}
	}
	return out
}

// pixelMean and pixelStd are the statistics of ImageNet's pixels by channel.
func pixelMean(c int) float32 { return [...]float32{0.485, 0.456, 0.406}[c] }

func pixelStd(c int) float32 { return [...]float32{0.229, 0.224, 0.225}[c] }
