package vae

// ToImage converts raw decoder output to ComfyUI's IMAGE values in place: clamp((v + 1) / 2, 0, 1). NaN becomes 0.
func ToImage(v []float32) {
	for i, f := range v {
		f = (f + 1) / 2
		switch {
		case f >= 1:
			v[i] = 1
		case f > 0:
			v[i] = f
		default:
			v[i] = 0
		}
	}
}

// CropToImage converts IMAGE values [B, Y, X, C] in 0..1 to the input of Encode, 2v - 1: center-cropped to multiples of
// c.Scale() rows and columns, and with c.In channels, where surplus ones are dropped and missing alpha is 1. It returns
// new pictures [B, y, x, c.In]; y or x is 0 if the picture is smaller than a latent pixel.
func (c Config) CropToImage(image []float32, b, rows, cols, channels int) (out []float32, y, x int) {
	s := c.Scale()
	y, x = rows/s*s, cols/s*s
	top, left := rows%s/2, cols%s/2
	out = make([]float32, 0, b*y*x*c.In)
	for i := range b {
		for r := range y {
			at := ((i*rows+top+r)*cols + left) * channels
			for p := range x {
				for _, f := range image[at+p*channels : at+p*channels+min(channels, c.In)] {
					out = append(out, 2*f-1)
				}
				for range c.In - channels {
					out = append(out, 1)
				}
			}
		}
	}
	return out, y, x
}
