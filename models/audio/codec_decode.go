package audio

import "patchbay/engine"

// decode decodes the channels [y, x] of a latent one by one.
func (v *codec) decode(env Env, latent []float32, y, x int) ([]float32, error) {
	wide := x * max(v.Width, v.channels)
	arena, free, err := env.arena(v.nets.Decoder.bytes(x, wide))
	if err != nil {
		return nil, err
	}
	defer free()
	w := v.nets.Decoder.pass(env, arena, x, wide)
	var out []float32
	for channel := range y {
		z := make([]float32, 0, v.channels*x)
		for i := range x {
			for k := range v.channels {
				z = append(z, latent[(k*y+channel)*x+i]*v.std[k]+v.mean[k])
			}
		}
		narrow, in := w.bufs[1].of(x, v.channels), w.bufs[0]
		env.Ops.Upload(narrow, z)
		env.Ops.Linear(rows(in.of(x, v.Width)), rows(narrow), v.nets.Widen, engine.Epilogue{})
		wave, err := w.run(x)
		if err != nil {
			return nil, err
		}
		out = append(out, wave...)
	}
	clamp(out)
	return out, nil
}

// clamp bounds samples to -1..1.
func clamp(wave []float32) {
	for i, f := range wave {
		wave[i] = min(max(f, -1), 1)
	}
}
