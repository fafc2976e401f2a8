package request

import (
	"math"

	"patchbay/fault"
)

// CacheRule selects what a Cache compares.
type CacheRule uint8

// The rules. CacheEasy (ComfyUI's node EasyCache) compares the input and output of the network itself, entry by entry.
// CacheLazy (LazyCache) compares the sampler's latent and the guided prediction of it, whatever the network is.
const (
	CacheEasy CacheRule = iota
	CacheLazy
)

// CacheRules returns the names of the rules, by rule.
func CacheRules() []string { return []string{CacheEasy: "easy", CacheLazy: "lazy"} }

// Cache answers evaluations without the network while they are expected to change little. The prediction is then the
// input plus the difference between output and input of the last evaluation that ran.
//
// The expected change of the output, relative to its size, is added up over the evaluations since then:
//
//	expected = rate * mean|x - x1| / mean|y1|    rate = mean|y1 - y2| / mean|x1 - x2|
//
// where x is the input of this evaluation, x1 and y1 are input and output of the last one that ran, and x2 and y2 those
// of the one that ran before it. The evaluation is answered from the cache while the sum is below Threshold; otherwise
// it runs and the sum restarts at 0. The first two evaluations therefore always run. Differences are taken at every
// eighth row and column of the latent, starting with the first; mean|y1| is over all of it. Of a video with sound,
// CacheEasy compares the video, and CacheLazy every eighth element of one row of both. Formula and numerics are those
// of ComfyUI 0.8.0, with sound those of 0.33.0 (comfy_extras/nodes_easycache.py).
//
// The leader decides once per evaluation, and an answered one sends no command, so all ranks of every plan take the
// same branch. In a pipeline with patches the first patch decides for all patches from its own rows; keys and values
// that ranks keep stay as they are.
type Cache struct {
	Rule CacheRule
	// Threshold is ComfyUI's reuse_threshold, >= 0; 0 reuses nothing.
	Threshold float32
	// Start and End, from 0 to 1, bound the part of the run in which evaluations are answered, as fractions of
	// ComfyUI's timeline (ModelSampling.PercentToSigma). After End the network runs and the cache learns nothing.
	Start, End float64
	// Verbose fills Stats.Changes.
	Verbose bool
}

// CacheChange is what a Cache observed in one evaluation.
type CacheChange struct {
	Evaluation int // number from 0, answered evaluations included
	// mean absolute change of the input since the last evaluation that ran; NaN: nothing to compare with
	Input    float32
	Expected float32 // expected change of the output, relative to its size; NaN: unknown
	Total    float32 // sum of Expected since the last evaluation that ran
	Measured float32 // change of the output, relative to its size, if the network ran; NaN: unknown
	Reused   bool
}

// validate refuses invalid settings.
func (c *Cache) validate() error {
	within := func(v float64) bool { return v >= 0 && v <= 1 }
	switch {
	case c == nil:
		return nil
	case int(c.Rule) >= len(CacheRules()):
		return fault.Bad("cache", "unknown rule %d", c.Rule)
	case !(c.Threshold >= 0) || math.IsInf(float64(c.Threshold), 0):
		return fault.Bad("cache.threshold", "is %v: want a finite number >= 0", c.Threshold)
	case !within(c.Start) || !within(c.End):
		return fault.Bad("cache", "start is %v and end %v: want numbers from 0 to 1", c.Start, c.End)
	}
	return nil
}
