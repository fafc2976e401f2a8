package picture

import "slices"

// Items returns n pictures of a batch, starting with number from. They share memory with im.
func (im *Image) Items(from, n int) *Image {
	out, size := *im, im.Y*im.X*im.C
	out.B, out.Data = n, im.Data[from*size:(from+n)*size:(from+n)*size]
	return &out
}

// First returns a copy of the pictures with their first c channels only.
func (im *Image) First(c int) *Image {
	out := &Image{B: im.B, Y: im.Y, X: im.X, C: c, Data: make([]float32, 0, im.B*im.Y*im.X*c)}
	for i := range im.B * im.Y * im.X {
		out.Data = append(out.Data, im.Data[i*im.C:i*im.C+c]...)
	}
	return out
}

// Widened returns the pictures with channels of ones appended up to c channels, im itself if it has as many.
func (im *Image) Widened(c int) *Image {
	if im.C >= c {
		return im
	}
	out := &Image{B: im.B, Y: im.Y, X: im.X, C: c, Data: slices.Repeat([]float32{1}, im.B*im.Y*im.X*c)}
	for i := range im.B * im.Y * im.X {
		copy(out.Data[i*c:], im.Data[i*im.C:(i+1)*im.C])
	}
	return out
}

// Cut returns the rectangle of w by h pixels at (x, y) of every picture.
func (im *Image) Cut(x, y, w, h int) *Image {
	out := &Image{B: im.B, Y: h, X: w, C: im.C, Data: make([]float32, 0, im.B*h*w*im.C)}
	for b := range im.B {
		for r := range h {
			at := ((b*im.Y+y+r)*im.X + x) * im.C
			out.Data = append(out.Data, im.Data[at:at+w*im.C]...)
		}
	}
	return out
}

// Channel returns one channel as masks.
func (im *Image) Channel(at int) *Mask {
	m := &Mask{B: im.B, Y: im.Y, X: im.X, Data: make([]float32, im.B*im.Y*im.X)}
	for i := range m.Data {
		m.Data[i] = im.Data[i*im.C+at]
	}
	return m
}

// Image returns the masks as pictures of one channel, which share their memory.
func (m *Mask) Image() *Image { return &Image{B: m.B, Y: m.Y, X: m.X, C: 1, Data: m.Data} }

// Like returns masks of the same shape with the values v.
func (m *Mask) Like(v []float32) *Mask { return &Mask{B: m.B, Y: m.Y, X: m.X, Data: v} }

// Centred cuts off equal margins until the sides are multiples of n, as the encoder does with pictures.
func (m *Mask) Centred(n int) *Mask {
	cut := m.Image().Cut(m.X%n/2, m.Y%n/2, m.X/n*n, m.Y/n*n)
	return &Mask{B: m.B, Y: cut.Y, X: cut.X, Data: cut.Data}
}

// Dilated sums a mask of whole numbers over boxes of n x n pixels (rows and columns i-p .. i-p+n-1 with p =
// ceil((n-1)/2)) and clips to 0..1; n of 0 or 1 leaves the values. Such sums are exact in f64, so the order does not
// matter.
func (m *Mask) Dilated(n int) *Mask {
	out := m.Like(slices.Clone(m.Data))
	if n < 1 {
		return out
	}
	for b := range m.B {
		plane := out.Data[b*m.Y*m.X:][:m.Y*m.X]
		for r := range m.Y {
			boxSum(plane[r*m.X:], m.X, 1, n)
		}
		for k := range m.X {
			boxSum(plane[k:], m.Y, m.X, n)
		}
	}
	for i, v := range out.Data {
		out.Data[i] = min(max(v, 0), 1)
	}
	return out
}

// boxSum replaces each of count values, stride apart, by the sum of its box.
func boxSum(v []float32, count, stride, n int) {
	sums := make([]float64, count+1)
	for i := range count {
		sums[i+1] = sums[i] + float64(v[i*stride])
	}
	p := n / 2 // ceil((n-1)/2)
	for i := range count {
		v[i*stride] = float32(sums[min(max(i-p+n, 0), count)] - sums[max(i-p, 0)])
	}
}

// Items returns length masks, or what is left, from number from of a batch that is first repeated to at least b masks.
func (m *Mask) Items(from, length, b int) *Mask {
	n, total := m.Y*m.X, max(m.B, b)
	length = max(min(length, total-from), 0)
	out := &Mask{B: length, Y: m.Y, X: m.X, Data: make([]float32, 0, length*n)}
	for i := range length {
		at := (from + i) % m.B * n
		out.Data = append(out.Data, m.Data[at:at+n]...)
	}
	return out
}
