package layers

import "math"

// TimestepFeatures returns sinusoidal features [len(t), dim] of timesteps, sizes or guidance values: cos(t*f_i) for i <
// dim/2, then sin(t*f_i), f_i = 10000^(-i/(dim/2)); dim is even (Denoising Diffusion Probabilistic Models,
// arXiv:2006.11239, appendix B, cosines first). Every step is rounded to f32 as torch does it. Families whose network
// takes t in 0..1 first multiply it by their time factor (FLUX: 1000).
func TimestepFeatures(t []float32, dim int) []float32 { return ScaledFeatures(t, dim, 1) }

// ScaledFeatures is TimestepFeatures with phases scale * (t*f_i), which differ from (scale*t) * f_i in the last place.
func ScaledFeatures(t []float32, dim int, scale float32) []float32 {
	half := dim / 2
	freqs := make([]float32, half)
	for i := range freqs {
		freqs[i] = float32(math.Exp(float64(float32(-math.Log(10000)) * float32(i) / float32(half))))
	}
	for _, i := range []int{12, 106} { // of 128: torch's exp rounds these up, which changes cos by 3e-4 at t = 30000
		if at := i * half / 128; at*128 == i*half {
			freqs[at] = math.Nextafter32(freqs[at], 1)
		}
	}
	return features(t, freqs, scale)
}

// PowerFeatures is TimestepFeatures with frequencies that are powers of 10000, which differ from those in the last
// place (Wan).
func PowerFeatures(t []float32, dim int) []float32 {
	freqs := make([]float32, dim/2)
	for i := range freqs {
		freqs[i] = float32(math.Pow(10000, float64(-(float32(i) / float32(len(freqs))))))
	}
	return features(t, freqs, 1)
}

// features returns the cosines and sines of scale * (t*f) for every t and frequency f: [len(t), 2*len(freqs)].
func features(t, freqs []float32, scale float32) []float32 {
	half := len(freqs)
	dim := 2 * half
	out := make([]float32, len(t)*dim)
	for i, v := range t {
		row := out[i*dim : (i+1)*dim]
		for j, f := range freqs {
			sin, cos := math.Sincos(float64(scale * (v * f)))
			row[j], row[half+j] = float32(cos), float32(sin)
		}
	}
	return out
}
