package resample

// Smooth resizes m to width x height with Keys' cubic filter (a = -0.5), stretched where the result is smaller:
// torch's bicubic interpolation with antialiasing. Each axis sums in float32, X first.
func Smooth(m Image, width, height int) Image {
	planes, inner := m.planes()
	out := m.sized(width, m.Y)
	smoothed(out.Data, m.Data, m.X, width, planes*m.Y, inner)
	last := out.sized(width, height)
	smoothed(last.Data, out.Data, m.Y, height, planes, width*inner)
	return last
}

// smoothed maps src [outer, from, inner] to dst [outer, to, inner].
func smoothed(dst, src []float32, from, to, outer, inner int) {
	if from == to {
		copy(dst, src)
		return
	}
	scale := float32(from) / float32(to)
	wide := max(scale, 1)
	for i := range to {
		center := scale * (float32(i) + 0.5)
		first := max(int(center-2*wide+0.5), 0)
		n := min(int(center+2*wide+0.5), from) - first
		weight, sum := make([]float32, n), float32(0)
		for j := range n {
			weight[j] = keys((float32(j+first) - center + 0.5) / wide)
			sum += weight[j]
		}
		for o := range outer {
			for k := range inner {
				v := float32(0)
				for j, w := range weight {
					v += float32(src[(o*from+first+j)*inner+k] * (w / sum))
				}
				dst[(o*to+i)*inner+k] = v
			}
		}
	}
}

// keys is the cubic convolution filter with a = -0.5 (R. Keys, IEEE ASSP 29, 1981).
func keys(x float32) float32 {
	if x < 0 {
		x = -x
	}
	switch {
	case x < 1:
		return (1.5*x-2.5)*x*x + 1
	case x < 2:
		return ((-0.5*x+2.5)*x-4)*x + 2
	}
	return 0
}
