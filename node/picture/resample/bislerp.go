package resample

import "math"

// bislerp interpolates the channel vectors of neighbouring pixels along the arc between them, X axis first (ComfyUI
// comfy/utils.py bislerp).
func bislerp(m Image, width, height int) Image {
	wide := m.sized(width, m.Y)
	slerpAxis(m, wide, blend(m.X, width), true)
	out := wide.sized(width, height)
	slerpAxis(wide, out, blend(m.Y, height), false)
	return out
}

// pair says where one output lies between two sources.
type pair struct {
	a, b int
	r    float32 // 0 at a, 1 at b
}

// blend returns the sources of each output. ComfyUI finds them by resizing the ramps 0, 1, 2 ... and 1, 2 ... n-1, n-1
// with bilinear, and that rounding is part of the result.
func blend(from, to int) []pair {
	k := generic
	if to+1 <= 128 { // the ramps are pictures of 1 x to
		k = vectorised
	}
	t := linear(from, to, k)
	ramp := func(i, plus int) float32 {
		value := func(at int) float32 { return float32(min(at+plus, from-1)) }
		return float32(t.weight[2*i]*value(t.at[2*i])) + float32(t.weight[2*i+1]*value(t.at[2*i+1]))
	}
	out := make([]pair, to)
	for i := range out {
		lo, hi := float32(i), float32(min(i+1, from-1)) // equal lengths copy
		if from != to {
			lo, hi = ramp(i, 0), ramp(i, 1)
		}
		at := float32(math.Floor(float64(lo)))
		out[i] = pair{min(int(lo), from-1), min(int(hi), from-1), lo - at}
	}
	return out
}

// slerpAxis fills out from m, which has another length along the X axis (alongX) or the Y axis. at has an entry for
// each output index of that axis.
func slerpAxis(m, out Image, at []pair, alongX bool) {
	split(out.B*out.Y, out.X*out.C*16, func(lo, hi int) {
		a, b := make([]float32, m.C), make([]float32, m.C)
		for row := lo; row < hi; row++ {
			n, y := row/out.Y, row%out.Y
			for x := range out.X {
				ya, yb, xa, xb, r := y, y, 0, 0, float32(0)
				if alongX {
					xa, xb, r = at[x].a, at[x].b, at[x].r
				} else {
					ya, yb, xa, xb, r = at[y].a, at[y].b, x, x, at[y].r
				}
				m.pixel(a, n, ya, xa)
				m.pixel(b, n, yb, xb)
				slerp(a, b, r)
				start, step := out.stride(n, y, x)
				for c, v := range a {
					out.Data[start+c*step] = v
				}
			}
		}
	})
}

// stride returns the index in Data of a pixel's first channel, and the distance between its channels.
func (m Image) stride(n, y, x int) (start, step int) {
	if m.Layout == ChannelsLast {
		return ((n*m.Y+y)*m.X + x) * m.C, 1
	}
	return (n*m.C*m.Y+y)*m.X + x, m.Y * m.X
}

// pixel copies the channels of one pixel into v.
func (m Image) pixel(v []float32, n, y, x int) {
	start, step := m.stride(n, y, x)
	for c := range v {
		v[c] = m.Data[start+c*step]
	}
}

// slerp moves a by the fraction r of the way to b, in place: directions along the great circle (K. Shoemake, SIGGRAPH
// 1985), lengths linearly. Vectors of (almost) one direction give a, of opposite directions the linear mix; a zero
// vector has no direction and adds none.
func slerp(a, b []float32, r float32) {
	na, nb := norm(a), norm(b)
	dot := cosine(a, b, na, nb)
	if dot > 1-1e-5 {
		return
	}
	if dot < 1e-5-1 {
		for c := range a {
			a[c] = float32(a[c]*(1-r)) + float32(b[c]*r)
		}
		return
	}
	omega := float32(math.Acos(float64(dot)))
	so := sin(omega)
	fa, fb := sin(float32((1-r)*omega))/so, sin(float32(r*omega))/so
	length := float32(na*(1-r)) + float32(nb*r)
	for c := range a {
		a[c] = float32((float32(fa*unit(a[c], na)) + float32(fb*unit(b[c], nb))) * length)
	}
}

func sin(x float32) float32 { return float32(math.Sin(float64(x))) }

// unit is v divided by the norm n of its vector, 0 for the zero vector.
func unit(v, n float32) float32 {
	if n == 0 {
		return 0
	}
	return v / n
}

// lanes is how many partial sums torch keeps when it adds up the channels of a pixel. The order matters: near opposite
// directions a rounding of the cosine is magnified.
const lanes = 8

// norm returns the Euclidean length of v. It sums lanes, then the rest, of which the last one to three are fused.
func norm(v []float32) float32 {
	var part [lanes]float32
	whole := len(v) / lanes * lanes
	for i, x := range v[:whole] {
		part[i%lanes] += float32(x * x)
	}
	sum := total(part, 0)
	for i, x := range v[whole:] {
		if i < (len(v)-whole)/4*4 {
			sum += float32(x * x)
		} else {
			sum = fused(x, x, sum)
		}
	}
	return float32(math.Sqrt(float64(sum)))
}

// cosine returns the dot product of the directions of a and b, of lengths na and nb. It sums the rest, then lanes.
func cosine(a, b []float32, na, nb float32) float32 {
	var part [lanes]float32
	whole, rest := len(a)/lanes*lanes, float32(0)
	for c := range a {
		p := float32(unit(a[c], na) * unit(b[c], nb))
		if c < whole {
			part[c%lanes] += p
		} else {
			rest += p
		}
	}
	return total(part, rest)
}

// total adds the parts to sum in order.
func total(part [lanes]float32, sum float32) float32 {
	for _, p := range part {
		sum += p
	}
	return sum
}
