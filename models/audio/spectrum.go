package audio

import (
	"math"

	"patchbay/engine"
	"patchbay/models/weights"
)

// spectrum makes the logarithms of mel spectrograms: products of windows of samples with waves, and of the magnitudes
// with what each band takes of them.
type spectrum struct {
	hop   int            // samples between windows
	Basis *engine.Weight `weight:"basis,nobias"` // [2N, W]: the N real parts, then the imaginary ones
	Bands *engine.Weight `weight:"bands,nobias"` // [bands, N]
}

// floor bounds what a band has, before its logarithm.
const floor = 1e-5

// rows returns the spectrogram [t, bands] of t windows, of which the first begins at a sample that may lie before the
// sound. at returns a sample.
func (s *spectrum) rows(env Env, t, first int, at func(i int) float32) ([]float32, error) {
	size, waves, n, bands := s.Basis.K(), s.Basis.N(), s.Bands.K(), s.Bands.N()
	layout := func(a *engine.Arena) (x, y, magnitudes, out engine.Tensor) {
		return a.Alloc(engine.F32, t, size), a.Alloc(engine.F32, t, waves), a.Alloc(engine.F32, t, n),
			a.Alloc(engine.F32, t, bands)
	}
	sizing := engine.NewMeasuringArena("audio")
	layout(sizing)
	arena, free, err := env.arena(sizing.Peak())
	if err != nil {
		return nil, err
	}
	defer free()
	x, y, magnitudes, out := layout(arena)
	windows := make([]float32, t*size)
	for i := range windows {
		windows[i] = at(first + i/size*s.hop + i%size)
	}
	env.Ops.Upload(x, windows)
	env.Ops.Linear(y, x, s.Basis, engine.Epilogue{})
	parts, m := make([]float32, t*waves), make([]float32, t*n)
	if err := env.Ops.Download(parts, y).Wait(); err != nil {
		return nil, err
	}
	for i := range m {
		re, im := parts[i/n*waves+i%n], parts[i/n*waves+n+i%n]
		m[i] = float32(math.Sqrt(float64(re*re + im*im)))
	}
	env.Ops.Upload(magnitudes, m)
	env.Ops.Linear(out, magnitudes, s.Bands, engine.Epilogue{})
	v := make([]float32, t*bands)
	if err := env.Ops.Download(v, out).Wait(); err != nil {
		return nil, err
	}
	for i, f := range v {
		v[i] = float32(math.Log(float64(max(f, floor))))
	}
	return v, nil
}

// fourier returns the waves of a discrete Fourier transform of size samples, below a Hann window.
func fourier(size int) weights.Stored {
	n := size/2 + 1
	v := make([]float32, 2*n*size)
	for k := range n {
		for i := range size {
			turn := 2 * math.Pi / float64(size)
			window := 0.5 - 0.5*math.Cos(turn*float64(i))
			sin, cos := math.Sincos(turn * float64(k*i%size))
			v[k*size+i], v[(n+k)*size+i] = float32(window*cos), float32(-window*sin)
		}
	}
	return weights.Floats(v, 2*n, size)
}

// slaney returns what bands take of the frequencies of a window of size samples, at rate samples a second: triangles of
// equal area between points that are as far apart as tones sound (Slaney, Auditory Toolbox, 1998): by frequency up to
// 1000 Hz, by its logarithm above.
func slaney(bands, size, rate int) weights.Stored {
	const linear, start, octave = 200.0 / 3, 1000.0, 27.0 // Hz a mel below start, and mels for a factor 6.4 above
	step := math.Log(6.4) / octave
	mel := func(hz float64) float64 {
		if hz < start {
			return hz / linear
		}
		return start/linear + math.Log(hz/start)/step
	}
	top := float64(rate) / 2
	points := make([]float64, bands+2)
	for i := range points {
		m := mel(top) * float64(i) / float64(bands+1)
		points[i] = m * linear
		if m >= start/linear {
			points[i] = start * math.Exp(step*(m-start/linear))
		}
	}
	n := size/2 + 1
	v := make([]float32, bands*n)
	for b := range bands {
		low, middle, high := points[b], points[b+1], points[b+2]
		for k := range n {
			hz := float64(rate/2) * float64(k) / float64(n-1)
			part := max(0, min((hz-low)/(middle-low), (high-hz)/(high-middle)))
			v[b*n+k] = float32(part * 2 / (high - low))
		}
	}
	return weights.Floats(v, bands, n)
}
