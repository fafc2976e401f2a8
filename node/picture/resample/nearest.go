package resample

import "math"

// nearest copies the source pixel (xs[x], ys[y]) to every output pixel (x, y).
func nearest(m Image, xs, ys []int) Image {
	width, height := len(xs), len(ys)
	out := m.sized(width, height)
	planes, inner := m.planes()
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
			for x, at := range xs { // calling copy costs more than the 3 or 4 values of a pixel
				for c := range inner {
					dst[x*inner+c] = src[at*inner+c]
				}
			}
		}
	})
	return out
}

// firstIndex returns for every output index the index of the source pixel that contains its start.
func firstIndex(from, to int) []int {
	at := make([]int, to)
	scale := float32(from) / float32(to)
	for i := range at {
		at[i] = min(int(float32(i)*scale), from-1)
	}
	return at
}

// nearestIndex returns for every output index the index of the source pixel that contains its center. The two
// implementations differ only for centers that lie on a boundary between source pixels, up to rounding.
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
