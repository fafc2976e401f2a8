package resample

// area averages the source pixels that an output pixel touches (torch.nn.AdaptiveAvgPool2d): rows floor(y Y / height)
// to ceil((y+1) Y / height), columns alike. Pixels that are touched only in part count as much as others.
func area(m Image, width, height int) Image {
	out := m.sized(width, height)
	planes, inner := m.planes()
	split(planes*height, width*inner*((m.Y/height+1)*(m.X/width+1)), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p, y := i/height, i%height
			y0, y1 := window(y, m.Y, height)
			for x := range width {
				x0, x1 := window(x, m.X, width)
				dst := out.Data[(i*width+x)*inner:][:inner]
				for iy := y0; iy < y1; iy++ {
					src := m.Data[((p*m.Y+iy)*m.X+x0)*inner:][:(x1-x0)*inner]
					addPixels(dst, src)
				}
				for c := range dst {
					dst[c] = dst[c] / float32(y1-y0) / float32(x1-x0)
				}
			}
		}
	})
	return out
}

// window returns the half-open range of source indices that output index i touches.
func window(i, from, to int) (lo, hi int) { return i * from / to, ((i+1)*from + to - 1) / to }

// addPixels adds the pixels of src, each of len(sum) channels, to sum one after the other.
func addPixels(sum, src []float32) {
	if len(sum) == 1 {
		s := sum[0]
		for _, v := range src {
			s += v
		}
		sum[0] = s
		return
	}
	for ; len(src) >= len(sum); src = src[len(sum):] {
		for c := range sum {
			sum[c] += src[c]
		}
	}
}
