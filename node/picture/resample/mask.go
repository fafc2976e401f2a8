package resample

import (
	"fmt"
	"slices"
)

// Grow returns a copy of the masks v [B, Y, X], grown by expand pixels (shrunk when negative) as ComfyUI's GrowMask
// does: as many passes in which each pixel becomes the largest (smallest) of its neighbours and itself. tapered leaves
// the diagonal neighbours out, so that corners become diagonal. It panics when the sizes do not fit.
func Grow(v []float32, b, y, x, expand int, tapered bool) []float32 {
	checkMask("Grow", v, b, y, x)
	cur, next := append([]float32(nil), v...), make([]float32, len(v))
	if expand < 0 { // the minimum is the negated maximum of the negated values
		negate(cur)
	}
	for range max(expand, -expand) {
		split(b*y, 8*x, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				up, down := i, i // beyond the edge lies the edge itself
				if i%y > 0 {
					up--
				}
				if i%y < y-1 {
					down++
				}
				growRow(next[i*x:][:x], cur[up*x:][:x], cur[i*x:][:x], cur[down*x:][:x], tapered)
			}
		})
		if slices.Equal(cur, next) { // nothing is left to grow into
			break
		}
		cur, next = next, cur
	}
	if expand < 0 {
		negate(cur)
	}
	return cur
}

func negate(v []float32) {
	for i := range v {
		v[i] = -v[i]
	}
}

// growRow computes one row from itself and the rows above and below.
func growRow(out, up, row, down []float32, tapered bool) {
	n := len(out)
	up, row, down = up[:n], row[:n], down[:n]
	for i := range out {
		l, r := max(i-1, 0), min(i+1, n-1)
		v := larger(larger(row[i], larger(row[l], row[r])), larger(up[i], down[i]))
		if !tapered {
			v = larger(v, larger(larger(up[l], up[r]), larger(down[l], down[r])))
		}
		out[i] = v
	}
}

// larger is cheaper than max, which also orders zeros and checks for NaN.
func larger(a, b float32) float32 {
	if b > a {
		return b
	}
	return a
}

// Feather returns a copy of the masks v [B, Y, X] whose borders rise linearly over the given widths, as ComfyUI
// 0.33.0's FeatherMask does (0.8.0 began the right and bottom ramps a column and a row too far). It panics when the
// sizes do not fit. Negative widths count as 0, too large ones as the side.
func Feather(v []float32, b, y, x, left, top, right, bottom int) []float32 {
	checkMask("Feather", v, b, y, x)
	out := append([]float32(nil), v...)
	column := func(at int, rate float32) {
		for i := at; i < len(out); i += x {
			out[i] *= rate
		}
	}
	row := func(at int, rate float32) {
		for n := range b {
			line := out[(n*y+at)*x:][:x]
			for i := range line {
				line[i] *= rate
			}
		}
	}
	ramp := func(length, side int, scale func(at int, rate float32), at func(i int) int) {
		length = min(length, side)
		for i := range max(length, 0) {
			scale(at(i), float32(float64(i+1)/float64(length)))
		}
	}
	forward := func(i int) int { return i }
	ramp(left, x, column, forward)
	ramp(right, x, column, func(i int) int { return x - 1 - i })
	ramp(top, y, row, forward)
	ramp(bottom, y, row, func(i int) int { return y - 1 - i })
	return out
}

func checkMask(op string, v []float32, b, y, x int) {
	if b < 0 || y < 1 || x < 1 || len(v) != b*y*x {
		panic(fmt.Sprintf("%s: %d values are not masks [%d, %d, %d]", op, len(v), b, y, x))
	}
}
