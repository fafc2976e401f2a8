package upscale

// padded makes the sides of a picture [y, x, 3] at least least and multiples of n, by mirroring at the lower and right
// edge and then repeating the last row or column (spandrel's pad_tensor).
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

// unshuffled makes channels of squares of n x n pixels: [y, x, 3] -> [y/n, x/n, 3*n*n], ordered (channel, row, column).
func unshuffled(pixels []float32, y, x, n int) []float32 {
	out := make([]float32, len(pixels))
	eachSquare(y, x, n, func(pixel, value int) { out[value] = pixels[pixel] })
	return out
}

// shuffled makes squares of n x n pixels of channels, and adds the small picture to each: the inverse.
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

// cut takes the upper left part [y, x, 3] of pictures of a width, with values cut to 0..1.
func cut(pixels []float32, width, y, x int) []float32 {
	out := make([]float32, 0, y*x*Channels)
	for r := range y {
		for _, v := range pixels[r*width*Channels : (r*width+x)*Channels] {
			out = append(out, min(max(v, 0), 1))
		}
	}
	return out
}
