package denoise

import (
	"math"
	"slices"
)

// denoise predicts x0 of the part at sigma: masking, evaluation, blending and guidance.
func (s *latentPart) denoise(ev *evaluator, x []float32, sigma float32) (x0, uncond []float32, err error) {
	d := s.d
	in, mask := x, s.maskAt(sigma)
	if mask != nil {
		noised := s.latent
		if !d.req.CleanMask {
			noised = d.req.Sampling.NoiseScaling(sigma, s.maskNoise, s.latent, false)
		}
		in = make([]float32, len(x))
		for i, w := range mask {
			in[i] = float32(x[i]*w) + float32(noised[i]*(1-w))
		}
	}
	branches, a, err := s.predict(ev, in, sigma)
	if err != nil {
		return nil, nil, err
	}
	if a.cached == cachedGuided && a.reused {
		x0, uncond = s.reuse(guidedKey, in), slices.Clone(s.uncond) // uncond is that of the last evaluation that ran
	} else {
		x0, uncond = mix(d.req.Guider, len(x), branches, func(negative, positive []float32, cfg float32) []float32 {
			return s.normed(s.guided(negative, positive, cfg, in, sigma), positive)
		})
		if scale := d.req.Guider.At(sigma); scale != 0 {
			x0 = slices.Clone(x0)
			for i, without := range branches[len(branches)-1] {
				x0[i] += float32((branches[0][i] - without) * scale)
			}
		}
		if a.cached == cachedGuided {
			s.keep(guidedKey, in, x0)
			s.uncond = append(s.uncond[:0], uncond...)
			ev.cache.learn(s, in, map[int][]float32{guidedKey: x0})
		}
	}
	if mask != nil {
		out := make([]float32, len(x0))
		for i, w := range mask {
			out[i] = float32(x0[i]*w) + float32(s.latent[i]*(1-w))
		}
		x0 = out
	}
	return x0, uncond, nil
}

// guided is lerp, after which Guider.Rescale acts if that is given, for whole items x at sigma: [B, n] each. Operations
// are in ComfyUI's order (comfy_extras/nodes_model_advanced.py, RescaleCFG), as those at a large sigma lose digits.
func (s *latentPart) guided(negative, positive []float32, cfg float32, x []float32, sigma float32) []float32 {
	multiplier, sound := s.d.req.Guider.Rescale, s.d.req.Guider.SoundCFG
	if sound != nil {
		return s.soundGuided(lerp(negative, positive, cfg), negative, positive, *sound)
	}
	if multiplier == nil {
		return lerp(negative, positive, cfg)
	}
	flow, square := s.d.req.Sampling.IsFlow(), float32(sigma*sigma)+1
	root := float32(math.Sqrt(float64(square)))
	velocity := func(x0 []float32) []float32 { // of flow models: x0 itself
		if flow {
			return x0
		}
		v := make([]float32, len(x0))
		for i := range v {
			away := x[i] - x0[i]
			v[i] = float32((x[i]/square-(x[i]-away))*root) / sigma
		}
		return v
	}
	want := velocity(positive)
	out := lerp(velocity(negative), want, cfg)
	for b := 0; b < len(out); b += s.n {
		item := out[b : b+s.n]
		ratio := float32(deviation(want[b:b+s.n]) / max(deviation(item), 1e-8))
		for i, v := range item {
			v = float32(*multiplier*float32(v*ratio)) + float32((1-*multiplier)*v)
			if item[i] = v; !flow {
				away := x[b+i] - (x[b+i]/square - float32(v*sigma)/root)
				item[i] = x[b+i] - away
			}
		}
	}
	return out
}

// soundGuided replaces the sound in guided [B, n] by that with a scale of its own.
func (s *latentPart) soundGuided(guided, negative, positive []float32, cfg float32) []float32 {
	video := max(0, s.d.n-s.d.req.Latent.Sound.Len()-s.from) // elements of an item in this part
	for b := 0; b < len(guided); b += s.n {
		from, to := b+min(video, s.n), b+s.n
		copy(guided[from:to], lerp(negative[from:to], positive[from:to], cfg))
	}
	return guided
}

// deviation returns the standard deviation of v, apart from a factor that depends on the length.
func deviation(v []float32) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range v {
		sum += float64(x)
	}
	mean := sum / float64(len(v))
	for _, x := range v {
		squares += (float64(x) - mean) * (float64(x) - mean)
	}
	return math.Sqrt(squares)
}

// normed scales every pixel of x0 [B, n] down to the length, over channels, of that pixel in the positive prediction if
// it is longer, and then by Guider.Norm (ComfyUI comfy_extras/nodes_cfg.py), if that is given.
func (s *latentPart) normed(x0, positive []float32) []float32 {
	norm := s.d.req.Guider.Norm
	if norm == nil {
		return x0
	}
	plane := s.d.whole.grid.LatentY * s.d.whole.grid.LatentX
	if s.d.whole.grid.Sound > 0 { // ComfyUI packs the two latents into one of a single channel
		plane = s.d.n
	}
	out, squares, want := make([]float32, len(x0)), make([]float64, plane), make([]float64, plane)
	for b := 0; b < len(x0); b += s.n {
		clear(squares)
		clear(want)
		at := func(i int) int { return int(s.d.whole.order[s.from+i]) % plane }
		for i := range s.n {
			squares[at(i)] += float64(x0[b+i]) * float64(x0[b+i])
			want[at(i)] += float64(positive[b+i]) * float64(positive[b+i])
		}
		for i := range s.n {
			scale := min(float32(math.Sqrt(want[at(i)]))/(float32(math.Sqrt(squares[at(i)]))+1e-8), 1)
			out[b+i] = x0[b+i] * scale * *norm
		}
	}
	return out
}

// maskAt returns the mask at sigma: as given, or thresholded by the progress of the run (ComfyUI's node
// DifferentialDiffusion).
func (s *latentPart) maskAt(sigma float32) []float32 {
	d := s.d
	if s.mask == nil || !d.req.Differential {
		return s.mask
	}
	strength, m := d.req.DifferentialStrength, d.req.Sampling
	to := max(m.SigmaMin(), d.sigmas[len(d.sigmas)-1])
	from, end, now := m.Timestep(d.sigmas[0]), m.Timestep(to), m.Timestep(sigma)
	threshold := (now - end) / (from - end)
	out := make([]float32, len(s.mask))
	for i, w := range s.mask {
		v := float32(0)
		if w >= threshold {
			v = 1
		}
		if strength > 0 && strength < 1 {
			v = float32(strength*v) + float32((1-strength)*w)
		}
		out[i] = v
	}
	return out
}

// predict evaluates all active entries of the branches that the guider needs and blends them per branch. Branches that
// are not needed stay nil, and so do all of them if a cache answers the guided prediction.
func (s *latentPart) predict(ev *evaluator, x []float32, sigma float32) ([][]float32, answer, error) {
	d := s.d
	needed := needed(d.req.Guider, len(d.req.Branches), d.sampler.NeedsUncond)
	if d.req.Guider.At(sigma) != 0 {
		needed[len(needed)-1] = true
	}
	q := question{x: x, input: x, sigma: sigma}
	if !d.req.Sampling.IsFlow() {
		q.input = make([]float32, len(x))
		d.req.Sampling.Input(q.input, x, sigma)
	}
	carried := d.req.Sampling.SoundScale() != 1
	if carried {
		q.input = slices.Clone(x)
		s.eachSound(q.input, func(at, end int) { d.req.Sampling.SoundInput(q.input[at:end], sigma) })
	}
	for i, p := range d.preds {
		if needed[p.branch] && p.active(sigma) {
			if p.broken != nil {
				return nil, answer{}, p.broken
			}
			q.active = append(q.active, i)
		}
	}
	a, err := ev.evaluate(s, q)
	if err != nil {
		return nil, a, err
	}
	s.evaluations++
	if !a.replayed {
		s.predicted += d.req.Latent.B * len(a.run)
	}
	if a.cached == cachedGuided && a.reused {
		return nil, a, nil
	}
	outputs := s.vectors(ev.cache, a, q)
	for _, i := range q.active {
		if carried {
			outputs[i] = slices.Clone(outputs[i]) // a replay or a cache keeps it
			s.eachSound(outputs[i], func(at, end int) {
				d.req.Sampling.SoundOutput(outputs[i][at:end], q.input[at:end], sigma)
			})
		}
	}
	out := make([][]float32, len(d.req.Branches))
	for br := range out {
		if !needed[br] {
			continue
		}
		var preds []int
		var x0 [][]float32
		for _, i := range q.active {
			if d.preds[i].branch == br {
				v := make([]float32, len(x))
				d.req.Sampling.Denoised(v, outputs[i], x, sigma)
				preds, x0 = append(preds, i), append(x0, v)
			}
		}
		out[br] = s.blend(preds, x0)
	}
	return out, a, nil
}

// vectors returns the outputs by prediction, indexed like the part's vector, from the ranks or from the cache, which
// learns from the former. Elements outside an area are meaningless, and nothing reads them.
func (s *latentPart) vectors(cache *caching, a answer, q question) map[int][]float32 {
	out := map[int][]float32{}
	for k, i := range a.run {
		out[i] = s.vector(s.d.preds[i].layout, a.outputs[k])
	}
	for _, i := range q.active {
		if out[i] == nil {
			out[i] = s.reuse(i, q.input)
		} else if a.cached == cachedOutputs {
			s.keep(i, q.input, out[i])
		}
	}
	if a.cached == cachedOutputs && !a.reused {
		cache.learn(s, q.input, out)
	}
	return out
}

// vector reorders the network's output rows into the part's vector; elements outside an area are 0.
func (s *latentPart) vector(l *layout, output []float32) []float32 {
	spec := s.d.req.Model.Spec
	features := spec.FeaturesOut()
	if l.gather == nil && features == l.features {
		return output
	}
	v := make([]float32, len(s.latent))
	s.write(l, features, func(at, row int) { v[at] = output[row] })
	return v
}

// blend averages the x0 of one branch's active entries by their weights: sum(x0*w)/(1e-37 + sum w). Without an entry it
// returns zeros.
func (s *latentPart) blend(preds []int, x0 [][]float32) []float32 {
	if len(preds) == 1 && s.weights[preds[0]] == nil {
		return x0[0]
	}
	sum, count := make([]float32, len(s.latent)), make([]float32, len(s.latent))
	for i := range count {
		count[i] = 1e-37
	}
	for k, i := range preds {
		l := s.d.preds[i].layout
		s.write(l, l.features, func(at, _ int) {
			w := float32(1)
			if weight := s.weights[i]; weight != nil {
				w = weight[at%len(weight)]
			}
			sum[at] += float32(x0[k][at] * w)
			count[at] += w
		})
	}
	for i := range sum {
		sum[i] /= count[i]
	}
	return sum
}
