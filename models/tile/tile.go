// Package tile processes large images in overlapping tiles and blends the results, as ComfyUI's tiled_scale does
// (comfy/utils.py, tiled_scale_multidim). It does not know what a tile becomes.
package tile

import "math"

// Size is the geometry of tiles: rows, columns, and how far neighbors overlap, in units of the input.
type Size struct{ Y, X, Overlap int }

// Func computes one tile [ty, tx, C] into [Up*ty, Up*tx, Out]. check reports the progress within the tile, as in Pass.
type Func func(tile []float32, ty, tx int, check func(done, total int) error) ([]float32, error)

// Grid describes an item [Y, X, C] that becomes [Up*Y, Up*X, Out].
type Grid struct {
	C, Out, Y, X int
	Up           float64
}

// Scaled converts a length or position of the input to the output's, rounding halves to even as Python does.
func (g Grid) Scaled(n int) int { return int(math.RoundToEven(float64(n) * g.Up)) }

// Pass runs f on all tiles of item, of one size, which must be larger than its overlap, and blends the results. An item
// that fits into one tile is not cut. check, if not nil, is called with the progress of the whole pass. An error of
// check or f ends the pass.
func (g Grid) Pass(t Size, check func(done, total int) error, f Func, item []float32) ([]float32, error) {
	if g.Y <= t.Y && g.X <= t.X {
		return f(item, g.Y, g.X, check)
	}
	rows, cols := starts(g.Y, t.Y, t.Overlap), starts(g.X, t.X, t.Overlap)
	height, width := g.Scaled(g.Y), g.Scaled(g.X)
	sum, weight := make([]float32, height*width*g.Out), make([]float32, height*width)
	for i, y0 := range rows {
		for j, x0 := range cols {
			ty, tx := min(t.Y, g.Y-y0), min(t.X, g.X-x0)
			tile := make([]float32, 0, ty*tx*g.C)
			for r := range ty {
				at := ((y0+r)*g.X + x0) * g.C
				tile = append(tile, item[at:at+tx*g.C]...)
			}
			done, err := f(tile, ty, tx, Part(check, i*len(cols)+j, len(rows)*len(cols)))
			if err != nil {
				return nil, err
			}
			g.blend(sum, weight, done, g.Scaled(y0), g.Scaled(x0), g.Scaled(ty), g.Scaled(tx), g.Scaled(t.Overlap))
		}
	}
	for i, w := range weight {
		for k := range g.Out {
			sum[i*g.Out+k] /= w
		}
	}
	return sum, nil
}

// Part turns check into one that reports the progress of item i of n; nil stays nil.
func Part(check func(done, total int) error, i, n int) func(done, total int) error {
	if check == nil {
		return nil
	}
	return func(done, total int) error { return check(i*total+done, n*total) }
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

// Least returns the length of the shortest tile on a side of n.
func Least(n, size, overlap int) int {
	last := starts(n, size, overlap)
	return min(size, n-last[len(last)-1])
}

// blend adds a tile [h, w, out] at (y, x) with weights that rise linearly over the overlap from every edge of the tile.
func (g Grid) blend(sum, weight, tile []float32, y, x, h, w, overlap int) {
	rows, cols := ramp(h, overlap), ramp(w, overlap)
	width := g.Scaled(g.X)
	for r := range h {
		for c := range w {
			m := rows[r] * cols[c]
			at := (y+r)*width + x + c
			weight[at] += m
			for k := range g.Out {
				sum[at*g.Out+k] += tile[(r*w+c)*g.Out+k] * m
			}
		}
	}
}

// ramp returns the weights along a side of n: (t+1)/feather at distance t from an edge, multiplied where both edges are
// near. A feather at least as long as the side leaves the weights at 1.
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
