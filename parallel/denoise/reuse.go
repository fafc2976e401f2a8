package denoise

import (
	"math"

	"patchbay/parallel/request"
)

// cacheStride is the distance between the rows and columns that are compared.
const cacheStride = 8

// reuser makes the decisions of a Cache for one run. It belongs to the first part, which calls it on its turn; answer
// carries what the other parts need of a decision.
type reuser struct {
	d        *denoiser
	cache    request.Cache
	from, to float32 // sigmas: evaluations are answered while to < sigma <= from
	meter    meter
	change   request.CacheChange // of the current evaluation

	// CacheEasy: the measured prediction (-1: none yet) and the rows and columns of its latent.
	first int
	size  [2]int

	elements map[*layout]*elements
	reused   []int
	changes  []request.CacheChange
}

func newReuser(d *denoiser) *reuser {
	c := d.req.Cache
	if c == nil {
		return nil
	}
	m := d.req.Sampling
	return &reuser{
		d: d, cache: *c, from: float32(m.PercentToSigma(c.Start)), to: float32(m.PercentToSigma(c.End)),
		meter: meter{threshold: c.Threshold}, first: -1, elements: map[*layout]*elements{},
	}
}

// decide returns which predictions of an evaluation the network must make, and which the cache answers.
func (r *reuser) decide(s *latentPart, q question, evaluation int) answer {
	nan := float32(math.NaN())
	r.change = request.CacheChange{Evaluation: evaluation, Input: nan, Expected: nan, Measured: nan}
	var a answer
	switch {
	case !(q.sigma > r.to):
		a = answer{run: q.active}
	case r.cache.Rule == request.CacheLazy: // an answer replaces everything from the latent to its guided prediction
		a = answer{run: q.active, lazy: true}
		if q.sigma <= r.from && r.small(s, r.d.whole, q.x) {
			a = answer{lazy: true, reused: true}
		}
	default:
		a = r.decideEasy(s, q)
	}
	if a.reused {
		r.reused = append(r.reused, evaluation)
		r.change.Reused = true
		r.note()
	}
	return a
}

// note records the current evaluation, which has ended.
func (r *reuser) note() {
	if r.cache.Verbose {
		r.changes = append(r.changes, r.change)
	}
}

// meter tracks how fast the output changes with the input, at the compared elements.
type meter struct {
	threshold     float32
	input, output []float32 // of the last evaluation that ran; nil: none yet
	norm          float32   // mean absolute output, over all elements
	rate          float32   // change of the output per change of the input
	rated         bool      // rate is known
	total         float32   // sum of expected changes since the last evaluation that ran
}

// small adds the change expected for input x and reports whether the sum stays below the threshold. If it does not, the
// sum restarts at 0.
func (m *meter) small(x []float32, c *request.CacheChange) bool {
	if m.input == nil {
		return false
	}
	c.Input = meanDistance(x, m.input)
	if !m.rated {
		return false
	}
	c.Expected = m.rate * c.Input / m.norm
	m.total += c.Expected
	c.Total = m.total
	small := m.total < m.threshold // false if a mean was 0, which makes the sum NaN or infinite
	if !small {
		m.total = 0
	}
	return small
}

// learn records an evaluation that ran: input and output at the compared elements, and the mean absolute output.
func (m *meter) learn(x, y []float32, norm float32, c *request.CacheChange) {
	if m.output != nil {
		measured := meanDistance(y, m.output)
		c.Measured = measured / m.norm
		if c.Input == c.Input { // not NaN
			m.rate, m.rated = measured/c.Input, true
		}
	}
	m.input, m.output, m.norm = x, y, norm
}

// meanDistance returns the mean of |a - b|.
func meanDistance(a, b []float32) float32 {
	sum := 0.0
	for i, v := range a {
		sum += math.Abs(float64(v - b[i]))
	}
	return float32(sum / float64(len(a)))
}

// small is meter.small for the elements that l covers, read from the part's vector x.
func (r *reuser) small(s *latentPart, l *layout, x []float32) bool {
	return r.meter.small(s.take(x, r.elementsOf(s, l).compared), &r.change)
}

// learn is meter.learn for the elements that l covers. sum adds up |y| over n elements.
func (r *reuser) learn(s *latentPart, l *layout, x, y []float32, sum float64, n int) {
	at := r.elementsOf(s, l).compared
	r.meter.learn(s.take(x, at), s.take(y, at), float32(sum/float64(n)), &r.change)
}

// elements are indices into one item of a part's vector: the compared elements, and all that a layout covers.
type elements struct{ compared, covered []int32 }

// elementsOf returns the elements of a layout. Compared are every eighth row and column that l covers, counted from its
// own first ones, in every frame.
func (r *reuser) elementsOf(s *latentPart, l *layout) *elements {
	if p, ok := r.elements[l]; ok {
		return p
	}
	p := &elements{}
	whole := r.d.whole
	y, x := whole.grid.Frame().LatentY, whole.grid.LatentX
	at := func(k int32) (int, int) {
		i := int(whole.order[int(k)+s.from])
		return i / x % y, i % x
	}
	top, left := 0, 0
	if l == whole {
		for k := range int32(s.n) {
			p.covered = append(p.covered, k)
		}
	} else { // an area: such a run has one part
		top, left = y, x
		for k, owned := range l.owned {
			if owned {
				p.covered = append(p.covered, l.gather[k])
				yi, xi := at(l.gather[k])
				top, left = min(top, yi), min(left, xi)
			}
		}
	}
	for _, k := range p.covered {
		if yi, xi := at(k); (yi-top)%cacheStride == 0 && (xi-left)%cacheStride == 0 {
			p.compared = append(p.compared, k)
		}
	}
	r.elements[l] = p
	return p
}

// take copies the elements at the given indices out of every item of a part's vector.
func (s *latentPart) take(v []float32, at []int32) []float32 {
	out := make([]float32, 0, len(v)/s.n*len(at))
	for i := 0; i < len(v); i += s.n {
		for _, k := range at {
			out = append(out, v[i+int(k)])
		}
	}
	return out
}

// size returns the sum of |v| at the given indices of all items, and how many elements that is.
func (s *latentPart) size(v []float32, at []int32) (sum float64, n int) {
	for i := 0; i < len(v); i += s.n {
		for _, k := range at {
			sum += math.Abs(float64(v[i+int(k)]))
		}
	}
	return sum, len(v) / s.n * len(at)
}
