package resample

import "math"

// rounding is one of torch's two CPU implementations (aten/src/ATen/native/cpu/UpSampleKernel.cpp).
type rounding uint8

const (
	generic    rounding = iota // any strides
	vectorised                 // a loop over the channels of one pixel
)

// kernel returns the implementation that torch takes: the vectorized one for pixels of more than 3 contiguous
// channels, and for small results.
func kernel(m Image, width, height int, cropped bool) rounding {
	if m.Layout == ChannelsLast && m.C > 3 && !cropped || width+height <= 128 {
		return vectorised
	}
	return generic
}

// taps is a linear map of one axis: output i is the sum of weight[i*n+j] times source at[i*n+j], summed in the order of
// j.
type taps struct {
	n      int
	from   int // source length
	to     int // output length
	at     []int
	weight []float32
}

// position returns the source coordinate of the center of output i when the source has scale times as many pixels:
// scale (i + 1/2) - 1/2, rounded once (as a fused multiply-add does) or else after the product too.
func position(scale float32, i int, once bool) float32 {
	c := float32(i) + 0.5
	if once {
		return fused(scale, c, -0.5)
	}
	return float32(scale*c) - 0.5
}

// fused returns a b + c with one rounding: the product of two float32 is exact in float64.
func fused(a, b, c float32) float32 { return float32(float64(a)*float64(b) + float64(c)) }

// linear weights the two nearest sources by distance.
func linear(from, to int, k rounding) taps {
	t := taps{n: 2, from: from, to: to, at: make([]int, 2*to), weight: make([]float32, 2*to)}
	scale := float32(from) / float32(to)
	for i := range to {
		pos := max(position(scale, i, k == vectorised), 0)
		at := min(int(pos), from-1)
		w := min(max(pos-float32(at), 0), 1)
		t.at[2*i], t.at[2*i+1] = at, min(at+1, from-1)
		t.weight[2*i], t.weight[2*i+1] = 1-w, w
	}
	return t
}

// cubic weights four sources by Keys' cubic convolution with a = -0.75 (R. Keys, IEEE ASSP 29, 1981; torch's
// constant). Sources outside are the nearest edge pixel. Products are rounded where torch's compiled code rounds them:
// far is a small difference of large terms.
func cubic(from, to int) taps {
	const a = float32(-0.75)
	near := func(x float32) float32 { return float32(float32((float32((a+2)*x)-(a+3))*x)*x) + 1 }
	far := func(x float32) float32 { return float32(fused(fused(a, x, -5*a), x, 8*a)*x) - 4*a }
	t := taps{n: 4, from: from, to: to, at: make([]int, 4*to), weight: make([]float32, 4*to)}
	scale := float32(from) / float32(to)
	for i := range to {
		pos := position(scale, i, true)
		at := min(int(math.Floor(float64(pos))), from-1)
		x := min(max(pos-float32(at), 0), 1)
		for j := range 4 {
			t.at[4*i+j] = min(max(at-1+j, 0), from-1)
		}
		copy(t.weight[4*i:], []float32{far(x + 1), near(x), near(1 - x), far(1 - x + 1)})
	}
	return t
}

// separable maps the X axis, then the Y axis.
func separable(m Image, x, y taps) Image {
	planes, inner := m.planes()
	if x.from != x.to {
		out := m.sized(x.to, m.Y)
		x.apply(out.Data, m.Data, planes*m.Y, inner)
		m = out
	}
	if y.from != y.to {
		out := m.sized(m.X, y.to)
		y.apply(out.Data, m.Data, planes, m.X*inner)
		m = out
	}
	if x.from == x.to && y.from == y.to { // the result must be new memory
		m.Data = append([]float32(nil), m.Data...)
	}
	return m
}

// apply maps src [outer, from, inner] to dst [outer, to, inner].
func (t taps) apply(dst, src []float32, outer, inner int) {
	// Work is split over (outer, to) pairs so that a single large plane uses all processors too.
	split(outer*t.to, t.n*inner, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			o, p := i/t.to, i%t.to
			at, w := t.at[p*t.n:][:t.n], t.weight[p*t.n:][:t.n]
			block := src[o*t.from*inner:][:t.from*inner]
			out := dst[i*inner:][:inner]
			if t.n == 2 {
				mix2(out, block[at[0]*inner:], block[at[1]*inner:], w[0], w[1])
			} else {
				mix4(out, block[at[0]*inner:], block[at[1]*inner:], block[at[2]*inner:], block[at[3]*inner:], w)
			}
		}
	})
}

func mix2(out, a, b []float32, wa, wb float32) {
	a, b = a[:len(out)], b[:len(out)]
	for i := range out {
		out[i] = float32(wa*a[i]) + float32(wb*b[i])
	}
}

func mix4(out, a, b, c, d, w []float32) {
	a, b, c, d = a[:len(out)], b[:len(out)], c[:len(out)], d[:len(out)]
	wa, wb, wc, wd := w[0], w[1], w[2], w[3]
	for i := range out {
		out[i] = float32(wa*a[i]) + float32(wb*b[i]) + float32(wc*c[i]) + float32(wd*d[i])
	}
}

// Linear resizes m to width x height as Bilinear does, with the rounding that torch uses for large results.
func Linear(m Image, width, height int) Image {
	return separable(m, linear(m.X, width, generic), linear(m.Y, height, generic))
}
