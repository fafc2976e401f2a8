package parallel

// decideLazy looks at the latent itself: LazyCache leaves out everything between it and the guided prediction.
func (r *reuser) decideLazy(s *latentPart, q question) answer {
	a := answer{run: q.active, lazy: true}
	if q.sigma > r.from {
		return a
	}
	if r.meter.small(s.take(q.x, r.placesOf(s, r.d.whole).compared), &r.change) {
		return answer{lazy: true, reused: true}
	}
	if r.meter.rated {
		r.meter.total = 0
	}
	return a
}

// reuseLazy answers with latent + kept difference. Samplers that ask for the unconditional prediction get that of the
// last evaluation that ran.
func (s *latentPart) reuseLazy(x []float32) (x0, uncond []float32) {
	x0 = make([]float32, len(x))
	for i, v := range s.lazy {
		x0[i] = x[i] + v
	}
	return x0, append([]float32(nil), s.uncond...)
}

// keepLazy stores what prediction adds to the latent and lets the first part measure it.
func (s *latentPart) keepLazy(r *reuser, x, x0, uncond []float32) {
	if s.lazy == nil {
		s.lazy = make([]float32, len(x))
	}
	for i, v := range x0 {
		s.lazy[i] = v - x[i]
	}
	s.uncond = append(s.uncond[:0], uncond...)
	if s.index > 0 {
		return
	}
	p := r.placesOf(s, r.d.whole)
	sum, n := s.size(x0, p.covered)
	r.meter.learn(s.take(x, p.compared), s.take(x0, p.compared), float32(sum/float64(n)), &r.change)
	r.note()
}
