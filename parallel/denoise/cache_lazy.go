package denoise

import "patchbay/parallel/request"

// lazyCache is ComfyUI's LazyCache: an answer replaces everything from the latent to its guided prediction.
type lazyCache struct{ *gauge }

func (c *lazyCache) Decide(s *latentPart, q question, open bool, seen *request.CacheChange) answer {
	if open && c.small(s, c.whole, q.x, seen) {
		return answer{cached: cachedGuided, reused: true}
	}
	return answer{run: q.active, cached: cachedGuided}
}

func (c *lazyCache) Learn(s *latentPart, x []float32, outputs map[int][]float32, seen *request.CacheChange) {
	x0 := outputs[guidedKey]
	sum, n := s.size(x0, c.elementsOf(s, c.whole).covered)
	c.learn(s, c.whole, x, x0, sum, n, seen)
}
