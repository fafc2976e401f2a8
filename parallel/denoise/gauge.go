package denoise

import (
	"math"

	"patchbay/parallel/request"
)

// cacheStride is the distance between the rows and columns that are compared.
const cacheStride = 8

// gauge measures at a part of the latent how much changes from one evaluation to the next, for rules that go by that.
type gauge struct {
	meter    meter
	whole    *layout
	video    int  // elements of an item before those of the sound
	packed   bool // the rule sees one row of elements, those of the video and then those of the sound
	elements map[*layout]*elements
}

// newGauge makes the gauge of a rule. Beside a video ComfyUI's samplers hold its sound in one packed latent, which is
// what LazyCache compares; its networks get them apart, and EasyCache compares the video alone.
func newGauge(whole *layout, sound int, rule request.CacheRule, threshold float32) *gauge {
	return &gauge{
		meter: meter{threshold: threshold}, whole: whole, video: len(whole.order) - sound,
		packed: sound > 0 && rule == request.CacheLazy, elements: map[*layout]*elements{},
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
func (m *meter) small(x []float32, seen *request.CacheChange) bool {
	if m.input == nil {
		return false
	}
	seen.Input = meanDistance(x, m.input)
	if !m.rated {
		return false
	}
	seen.Expected = m.rate * seen.Input / m.norm
	m.total += seen.Expected
	seen.Total = m.total
	small := m.total < m.threshold // false if a mean was 0, which makes the sum NaN or infinite
	if !small {
		m.total = 0
	}
	return small
}

// learn records an evaluation that ran: input and output at the compared elements, and the mean absolute output.
func (m *meter) learn(x, y []float32, norm float32, seen *request.CacheChange) {
	if m.output != nil {
		measured := meanDistance(y, m.output)
		seen.Measured = measured / m.norm
		if seen.Input == seen.Input { // not NaN
			m.rate, m.rated = measured/seen.Input, true
		}
	}
	m.input, m.output, m.norm = x, y, norm
}

func meanDistance(a, b []float32) float32 {
	sum := 0.0
	for i, v := range a {
		sum += math.Abs(float64(v - b[i]))
	}
	return float32(sum / float64(len(a)))
}

// small is meter.small for the elements that l covers, read from the part's vector x.
func (g *gauge) small(s *latentPart, l *layout, x []float32, seen *request.CacheChange) bool {
	return g.meter.small(s.take(x, g.elementsOf(s, l).compared), seen)
}

// learn is meter.learn for the elements that l covers. sum adds up |y| over n elements.
func (g *gauge) learn(s *latentPart, l *layout, x, y []float32, sum float64, n int, seen *request.CacheChange) {
	at := g.elementsOf(s, l).compared
	g.meter.learn(s.take(x, at), s.take(y, at), float32(sum/float64(n)), seen)
}

// elements are indices into one item of a part's vector: the compared elements, and all that a layout covers.
type elements struct{ compared, covered []int32 }

// elementsOf returns the elements of a layout. Compared are every eighth row and column that l covers, counted from its
// own first ones, in every frame; of a packed latent every eighth element.
func (g *gauge) elementsOf(s *latentPart, l *layout) *elements {
	if p, ok := g.elements[l]; ok {
		return p
	}
	p := &elements{}
	whole := g.whole
	y, x := whole.grid.Frame().LatentY, whole.grid.LatentX
	in := func(k int32) int { return int(whole.order[int(k)+s.from]) }
	at := func(k int32) (int, int) {
		if g.packed {
			return 0, in(k)
		}
		return in(k) / x % y, in(k) % x
	}
	top, left := 0, 0
	if l == whole {
		for k := range int32(s.n) {
			if g.packed || in(k) < g.video {
				p.covered = append(p.covered, k)
			}
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
	g.elements[l] = p
	return p
}
