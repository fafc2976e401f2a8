package denoise

import (
	"slices"

	"patchbay/parallel/request"
)

// easyCache is ComfyUI's EasyCache: it answers single predictions of the network.
type easyCache struct {
	*gauge
	d     *denoiser
	first int        // the measured prediction; -1: none yet
	size  [2]int     // rows and columns of its latent
	calls []easyCall // of the current evaluation
}

// easyCall is the predictions that ComfyUI would make with one call of the network. The call that contains the measured
// entry decides for itself and for later calls; earlier calls have run by then.
type easyCall struct {
	entries  []int
	reused   bool
	measured bool // contains the measured entry
}

// Decide implements stepCache. It goes through the calls of an evaluation as EasyCache does. The measured entry is the
// first one of the first call in the window.
func (c *easyCache) Decide(s *latentPart, q question, open bool, seen *request.CacheChange) answer {
	if len(q.active) == 0 {
		return answer{}
	}
	a, marked := answer{cached: cachedOutputs}, false
	c.calls = nil
	for _, entries := range c.d.calls(q.active) {
		call := easyCall{entries: entries}
		if open {
			if c.resized(s, entries[0]) {
				marked = false
			}
			if c.first < 0 {
				c.first = entries[0]
			}
		}
		call.measured = slices.Contains(entries, c.first)
		if open && call.measured && !marked {
			marked = c.small(s, c.d.preds[c.first].layout, q.input, seen)
		}
		// ComfyUI fails with a KeyError if an entry is new in this evaluation; here its call runs
		call.reused = marked && s.knows(entries)
		if marked && call.measured && !call.reused {
			marked, c.meter.total = false, 0
		}
		if !call.reused {
			a.run = append(a.run, entries...)
		}
		c.calls = append(c.calls, call)
	}
	slices.Sort(a.run)
	a.reused = len(a.run) == 0
	return a
}

// resized reports whether the size of what the network reads has changed, as when entries have areas of different
// sizes, and forgets everything if so. ComfyUI then also takes the rate to be known and 0, and reuses the rest of the
// run whatever happens; here the rate is unknown.
func (c *easyCache) resized(s *latentPart, entry int) bool {
	g := c.d.preds[entry].layout.grid
	size := [2]int{g.LatentY, g.LatentX}
	if c.size == ([2]int{}) {
		c.size = size
	}
	if c.size == size {
		return false
	}
	c.meter, c.first, c.size = meter{threshold: c.meter.threshold}, -1, [2]int{}
	clear(s.differences)
	return true
}

// Learn implements stepCache: it measures the calls that ran.
func (c *easyCache) Learn(s *latentPart, x []float32, outputs map[int][]float32, seen *request.CacheChange) {
	for _, call := range c.calls {
		if call.reused || !call.measured {
			continue
		}
		sum, n := 0.0, 0
		for _, i := range call.entries {
			v, count := s.size(outputs[i], c.elementsOf(s, c.d.preds[i].layout).covered)
			sum, n = sum+v, n+count
		}
		c.learn(s, c.d.preds[c.first].layout, x, outputs[c.first], sum, n, seen)
	}
}

// calls groups predictions as ComfyUI batches them (samplers.py, calc_cond_batch, assuming memory for the whole batch):
// each call takes the first prediction that is left and all others like it, in reverse order.
func (d *denoiser) calls(active []int) [][]int {
	rest := slices.Clone(active)
	if d.req.Guider.Kind == request.GuideDual { // ComfyUI evaluates negative, cond2, cond1
		slices.SortStableFunc(rest, func(a, b int) int { return d.preds[b].branch - d.preds[a].branch })
	}
	var out [][]int
	for len(rest) > 0 {
		var call, others []int
		for _, i := range rest {
			if d.alike(i, rest[0]) {
				call = append(call, i)
			} else {
				others = append(others, i)
			}
		}
		slices.Reverse(call)
		out, rest = append(out, call), others
	}
	return out
}

// alike reports whether two entries have inputs of the same shapes.
func (d *denoiser) alike(i, j int) bool {
	a, b := d.preds[i], d.preds[j]
	g, h := a.layout.grid, b.layout.grid
	return g.LatentY == h.LatentY && g.LatentX == h.LatentX && a.Context.Rows == b.Context.Rows &&
		a.Context2.Rows == b.Context2.Rows &&
		(a.Pooled == nil) == (b.Pooled == nil) && (a.Guidance == nil) == (b.Guidance == nil)
}
