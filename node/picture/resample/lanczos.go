package resample

import "math"

// lanczosSupport is the half width of the filter in source pixels, coefficientBits the fraction bits of its fixed-point
// weights (Pillow, src/libImaging/Resample.c).
const (
	lanczosSupport  = 3
	coefficientBits = 32 - 8 - 2
)

// lanczos resizes as Pillow does: the picture becomes 8-bit (255 v, truncated), each axis that changes is filtered in
// fixed point and rounded to 8 bits, X first, and the result is divided by 255 again. Meanwhile colors are
// premultiplied with alpha. This is Pillow up to version 12; Pillow 13 filters Y first for some pairs of sizes, which
// moves single values by a level or two.
func lanczos(m Image, width, height int) Image {
	pic := bytesOf(m)
	planes, inner := m.planes()
	alpha := (m.C == 2 || m.C == 4) && (width != m.X || height != m.Y)
	if alpha {
		alphas(m, pic, premultiply)
	}
	if width != m.X {
		dst := make([]uint8, planes*m.Y*width*inner)
		lanczosFilter(m.X, width).apply(dst, pic, planes*m.Y, inner)
		pic = dst
	}
	if height != m.Y {
		dst := make([]uint8, planes*height*width*inner)
		lanczosFilter(m.Y, height).apply(dst, pic, planes, width*inner)
		pic = dst
	}
	out := m.sized(width, height)
	if alpha {
		alphas(out, pic, unmultiply)
	}
	for i, v := range pic {
		out.Data[i] = float32(v) / 255
	}
	return out
}

// bytesOf truncates values in [0, 1] to 8 bits. Values outside are clipped, NaN becomes 0.
func bytesOf(m Image) []uint8 {
	out := make([]uint8, len(m.Data))
	for i, v := range m.Data {
		if v = 255 * v; v > 0 {
			out[i] = uint8(min(v, 255))
		}
	}
	return out
}

// alphas replaces every color of pic, which has the shape and layout of m with alpha as its last channel, by f(color,
// alpha).
func alphas(m Image, pic []uint8, f func(v, alpha uint8) uint8) {
	pixels, channel, pixel := m.Y*m.X, 1, m.C
	if m.Layout == ChannelsFirst {
		channel, pixel = m.Y*m.X, 1
	}
	for b := range m.B {
		one := pic[b*pixels*m.C:][:pixels*m.C]
		for c := range m.C - 1 {
			for i := range pixels {
				at := i*pixel + c*channel
				one[at] = f(one[at], one[i*pixel+(m.C-1)*channel])
			}
		}
	}
}

// premultiply returns v alpha / 255, rounded, without a division.
func premultiply(v, alpha uint8) uint8 {
	t := uint32(v)*uint32(alpha) + 128
	return uint8((t>>8 + t) >> 8)
}

// unmultiply returns 255 v / alpha, truncated and clipped, or v if alpha is 0 or 255.
func unmultiply(v, alpha uint8) uint8 {
	if alpha == 0 || alpha == 255 {
		return v
	}
	return uint8(min(255*uint32(v)/uint32(alpha), 255))
}

// filter8 is a filter of one axis in fixed point: output i is the sum of weight[i][j] times source first[i]+j.
type filter8 struct {
	from, to int
	first    []int
	weight   [][]int32
}

// lanczosFilter computes the weights sinc(x) sinc(x/3), stretched when the axis shrinks, normalized to a sum of 1 and
// rounded (Pillow precompute_coeffs).
func lanczosFilter(from, to int) filter8 {
	f := filter8{from: from, to: to, first: make([]int, to), weight: make([][]int32, to)}
	scale := float64(from) / float64(to)
	stretch := max(scale, 1)
	support, inverse := lanczosSupport*stretch, 1/stretch
	var w []float64
	for i := range to {
		center := (float64(i) + 0.5) * scale
		lo := max(int(center-support+0.5), 0)
		hi := min(int(center+support+0.5), from)
		w = w[:0]
		sum := 0.0
		for x := lo; x < hi; x++ {
			v := lanczosWeight((float64(x) - center + 0.5) * inverse)
			w = append(w, v)
			sum += v
		}
		f.first[i], f.weight[i] = lo, make([]int32, len(w))
		for j, v := range w {
			if sum != 0 {
				v /= sum
			}
			f.weight[i][j] = int32(float64(v*(1<<coefficientBits)) + math.Copysign(0.5, v))
		}
	}
	return f
}

func lanczosWeight(x float64) float64 {
	if x < -lanczosSupport || x >= lanczosSupport {
		return 0
	}
	return sinc(x) * sinc(x/lanczosSupport)
}

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}

// apply filters src [outer, from, inner] to dst [outer, to, inner].
func (f filter8) apply(dst, src []uint8, outer, inner int) {
	taps := 2 * lanczosSupport * max(f.from/f.to, 1)
	split(outer*f.to, taps*inner, func(lo, hi int) {
		sums := make([]int32, inner)
		for i := lo; i < hi; i++ {
			p := i % f.to
			for c := range sums {
				sums[c] = 1 << (coefficientBits - 1)
			}
			at := (i/f.to*f.from + f.first[p]) * inner
			for _, w := range f.weight[p] {
				row := src[at:][:inner]
				for c := range sums {
					sums[c] += int32(row[c]) * w
				}
				at += inner
			}
			out := dst[i*inner:][:inner]
			for c, s := range sums {
				out[c] = uint8(min(max(s>>coefficientBits, 0), 255))
			}
		}
	})
}
