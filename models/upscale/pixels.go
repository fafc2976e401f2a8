package upscale

// padded extends a picture [y, x, 3] to sides that are multiples of n and not below least, by mirroring at the lower
// and right edges and then repeating the last row or column (spandrel's pad_tensor).
func padded(pixels []float32, y, x, least, n int) (out []float32, tall, wide int) {
	tall, wide = (max(y, least)+n-1)/n*n, (max(x, least)+n-1)/n*n
	if tall == y && wide == x {
		return pixels, y, x
	}
	from := func(i, side int) int {
		if i < side {
			return i
		}
		return max(2*(side-1)-i, 0)
	}
	out = make([]float32, 0, tall*wide*Channels)
	for r := range tall {
		for c := range wide {
			at := (from(r, y)*x + from(c, x)) * Channels
			out = append(out, pixels[at:at+Channels]...)
		}
	}
	return out, tall, wide
}

// unshuffled turns squares of n x n pixels into channels: [y, x, 3] -> [y/n, x/n, 3*n*n], ordered (channel, row,
// column).
func unshuffled(pixels []float32, y, x, n int) []float32 {
	out := make([]float32, len(pixels))
	eachSquare(y, x, n, func(pixel, value int) { out[value] = pixels[pixel] })
	return out
}

// shuffled is the inverse of unshuffled; it also adds the small picture's pixel to every pixel of its square.
func shuffled(values, pixels []float32, y, x, n int) []float32 {
	out := make([]float32, len(values))
	eachSquare(n*y, n*x, n, func(pixel, value int) {
		out[pixel] = values[value] + pixels[value/(Channels*n*n)*Channels+pixel%Channels]
	})
	return out
}

// eachSquare pairs the values of a picture [y, x, 3] with those of [y/n, x/n, 3*n*n].
func eachSquare(y, x, n int, f func(pixel, value int)) {
	for pixel := range y * x * Channels {
		c, q, r := pixel%Channels, pixel/Channels%x, pixel/Channels/x
		f(pixel, (((r/n*(x/n)+q/n)*Channels+c)*n+r%n)*n+q%n)
	}
}

// cut returns the upper left part [y, x, 3] of a picture of the given width, clamped to 0..1.
func cut(pixels []float32, width, y, x int) []float32 {
	out := make([]float32, 0, y*x*Channels)
	for r := range y {
		for _, v := range pixels[r*width*Channels : (r*width+x)*Channels] {
			out = append(out, min(max(v, 0), 1))
		}
	}
	return out
}
