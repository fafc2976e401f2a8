package denoise

import (
	"slices"

	"patchbay/parallel/request"
)

// easyCall is the predictions that ComfyUI would make with one call of the network. The call that contains the measured
// entry decides for itself and for later calls; earlier calls have run by then.
type easyCall struct {
	entries  []int
	reused   bool
	measured bool // contains the measured entry
}

// decideEasy goes through the calls of an evaluation as EasyCache does. The measured entry is the first one of the
// first call in the window.
func (r *reuser) decideEasy(s *latentPart, q question) answer {
	var a answer
	open, marked := q.sigma <= r.from, false
	for _, entries := range r.d.calls(q.active) {
		call := easyCall{entries: entries}
		if open {
			if r.resized(s, entries[0]) {
				marked = false
			}
			if r.first < 0 {
				r.first = entries[0]
			}
		}
		call.measured = slices.Contains(entries, r.first)
		if open && call.measured && !marked {
			marked = r.small(s, r.d.preds[r.first].layout, q.input)
		}
		// ComfyUI fails with a KeyError if an entry is new in this evaluation; here its call runs
		call.reused = marked && s.knows(entries)
		if marked && call.measured && !call.reused {
			marked, r.meter.total = false, 0
		}
		if !call.reused {
			a.run = append(a.run, entries...)
		}
		a.calls = append(a.calls, call)
	}
	slices.Sort(a.run)
	a.reused = len(a.run) == 0 && len(a.calls) > 0
	return a
}

// resized reports whether the size of what the network reads has changed, as when entries have areas of different
// sizes, and forgets everything if so. ComfyUI then also takes the rate to be known and 0, and reuses the rest of the
// run whatever happens; here the rate is unknown.
func (r *reuser) resized(s *latentPart, entry int) bool {
	g := r.d.preds[entry].layout.grid
	size := [2]int{g.LatentY, g.LatentX}
	if r.size == ([2]int{}) {
		r.size = size
	}
	if r.size == size {
		return false
	}
	r.meter, r.first, r.size = meter{threshold: r.cache.Threshold}, -1, [2]int{}
	clear(s.kept)
	return true
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

// knows reports whether the part has kept a difference for each of the entries.
func (s *latentPart) knows(entries []int) bool {
	return !slices.ContainsFunc(entries, func(i int) bool { return s.kept[i] == nil })
}

// reuse answers a prediction from the cache: input + kept difference, [B, n].
func (s *latentPart) reuse(entry int, input []float32) []float32 {
	out := make([]float32, len(input))
	for i, v := range s.kept[entry] {
		out[i] = input[i] + v
	}
	return out
}

// keep stores the difference between a prediction's output and its input.
func (s *latentPart) keep(entry int, input, output []float32) {
	v := s.kept[entry]
	if v == nil {
		if s.kept == nil {
			s.kept = map[int][]float32{}
		}
		v = make([]float32, len(input))
		s.kept[entry] = v
	}
	for i, o := range output {
		v[i] = o - input[i]
	}
}

// learnEasy measures the calls that ran. outputs are by prediction, each in the order of the part's vector.
func (r *reuser) learnEasy(s *latentPart, calls []easyCall, input []float32, outputs map[int][]float32) {
	for _, call := range calls {
		if call.reused || !call.measured {
			continue
		}
		sum, n := 0.0, 0
		for _, i := range call.entries {
			v, count := s.size(outputs[i], r.elementsOf(s, r.d.preds[i].layout).covered)
			sum, n = sum+v, n+count
		}
		r.learn(s, r.d.preds[r.first].layout, input, outputs[r.first], sum, n)
	}
	r.note()
}

// guided is the key of the guided prediction where a part keeps something per prediction.
const guided = -1

// keepLazy stores the difference between the guided prediction and the latent. The first part also has r measure it.
func (s *latentPart) keepLazy(r *reuser, x, x0, uncond []float32) {
	s.keep(guided, x, x0)
	s.uncond = append(s.uncond[:0], uncond...)
	if s.index == 0 {
		sum, n := s.size(x0, r.elementsOf(s, r.d.whole).covered)
		r.learn(s, r.d.whole, x, x0, sum, n)
		r.note()
	}
}
