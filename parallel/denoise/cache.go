package denoise

import (
	"math"

	"patchbay/parallel/request"
)

// stepCache answers evaluations without the network while they are expected to change little. It belongs to the first
// part of the latent, which calls it on its turn; answer carries what the other parts need of a decision.
type stepCache interface {
	// Decide settles an evaluation from the rows of the first part: what the network must predict, and what every part
	// answers itself with the differences that it keeps. Only if open may it have anything answered. It says in seen what
	// it compared.
	Decide(s *latentPart, q question, open bool, seen *request.CacheChange) answer
	// Learn takes the first part's outputs for input x in an evaluation of which something ran: those of all predictions
	// or, with cachedGuided, the guided prediction under guidedKey.
	Learn(s *latentPart, x []float32, outputs map[int][]float32, seen *request.CacheChange)
}

func newStepCache(rule request.CacheRule, d *denoiser, g *gauge) stepCache {
	return [...]func() stepCache{
		request.CacheEasy: func() stepCache { return &easyCache{gauge: g, d: d, first: -1} },
		request.CacheLazy: func() stepCache { return &lazyCache{gauge: g} },
	}[rule]()
}

// caching applies a step cache to the evaluations of a run.
type caching struct {
	cache    stepCache
	from, to float32             // sigmas: evaluations are answered while to < sigma <= from
	seen     request.CacheChange // in the current evaluation
	verbose  bool
	reused   []int
	changes  []request.CacheChange
}

// newCaching returns nil without a cache.
func newCaching(d *denoiser) *caching {
	c := d.req.Cache
	if c == nil {
		return nil
	}
	m := d.req.Sampling
	return &caching{
		cache: newStepCache(c.Rule, d, newGauge(d.whole, d.req.Latent.Sound.Len(), c.Rule, c.Threshold)), verbose: c.Verbose,
		from: float32(m.PercentToSigma(c.Start)), to: float32(m.PercentToSigma(c.End)),
	}
}

// decide returns which predictions of an evaluation the network must make, and which the cache answers.
func (c *caching) decide(s *latentPart, q question, evaluation int) answer {
	if !(q.sigma > c.to) {
		return answer{run: q.active}
	}
	nan := float32(math.NaN())
	c.seen = request.CacheChange{Evaluation: evaluation, Input: nan, Expected: nan, Measured: nan}
	a := c.cache.Decide(s, q, q.sigma <= c.from, &c.seen)
	if a.reused {
		c.reused = append(c.reused, evaluation)
		c.seen.Reused = true
		c.note()
	}
	return a
}

// learn has the cache learn from the first part, once per evaluation; other parts only keep.
func (c *caching) learn(s *latentPart, x []float32, outputs map[int][]float32) {
	if s.index == 0 {
		c.cache.Learn(s, x, outputs, &c.seen)
		c.note()
	}
}

// note records the current evaluation, which has ended.
func (c *caching) note() {
	if c.verbose {
		c.changes = append(c.changes, c.seen)
	}
}
