package resample

import "math"

// nearest copies the source pixel whose area holds the center of the output pixel.
func nearest(m Image, k rounding, width, height int) Image {
	out := m.sized(width, height)
	planes, inner := m.planes()
	xs, ys := nearestIndex(m.X, width, k), nearestIndex(m.Y, height, k)
	split(planes*height, width*inner, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			src := m.Data[(i/height*m.Y+ys[i%height])*m.X*inner:][:m.X*inner]
			dst := out.Data[i*width*inner:][:width*inner]
			if inner == 1 {
				for x, at := range xs {
					dst[x] = src[at]
				}
				continue
			}
			for x, at := range xs { // a call of copy costs more than the 3 or 4 values of a picture
				for c := range inner {
					dst[x*inner+c] = src[at*inner+c]
				}
			}
		}
	})
	return out
}

// nearestIndex returns the source index of every output index. The two implementations agree but for centers that lie
// on a boundary between source pixels up to rounding.
func nearestIndex(from, to int, k rounding) []int {
	at := make([]int, to)
	scale := float32(from) / float32(to)
	for i := range at {
		var pos float64
		switch {
		case k == generic:
			pos = float64(max(position(scale, i, true), 0) + 0.5)
		case from == to:
			pos = float64(i)
		default:
			pos = float64(float32((float64(i) + 0.5) * float64(scale)))
		}
		at[i] = min(int(math.Floor(pos)), from-1)
	}
	return at
}
