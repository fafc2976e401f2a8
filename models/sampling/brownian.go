package sampling

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

const (
	// Increments cached besides the root's. The next interval usually begins where the last one ended, so both halves
	// of every node on two paths of some 25 levels are worth caching if they fit into the byte budget.
	brownianFewest = 50
	brownianMost   = 112
	brownianBytes  = 128 << 20
)

// BrownianTree is a Brownian motion over an interval of sigma whose values depend neither on where nor in which order
// they are requested: a dyadic tree whose nodes each split their increment with a generator seeded from the tree's
// 64-bit entropy and the node's position (Li et al. 2020, "Scalable Gradients for Stochastic Differential Equations",
// section 4, as in torchsde's BrownianTree with a tolerance of 1e-6). It is not safe for concurrent use.
type BrownianTree struct {
	entropy  uint64
	elements int
	root     *brownianNode
	cached   []*brownianNode // nodes with an increment, least recently used first
	keep     int
}

// brownianNode is one dyadic interval.
type brownianNode struct {
	start, end, middle float64
	key, depth         uint64
	parent             *brownianNode
	left, right        *brownianNode
	seed               uint64    // of the split, set once there are children
	w                  []float32 // increment over the interval, or nil
}

// NewBrownianTree returns the motion over [a, b], 0 <= a < b, of vectors with the given number of elements. All 64 bits
// of the seed matter.
func NewBrownianTree(seed uint64, elements int, a, b float32) (*BrownianTree, error) {
	if !(a < b) || math.IsInf(float64(b), 0) || a < 0 {
		return nil, fmt.Errorf("brownian interval %v..%v: want 0 <= first < second", a, b)
	}
	if elements < 1 {
		return nil, fmt.Errorf("brownian motion of %d elements: want 1 or more", elements)
	}
	t := &BrownianTree{entropy: seed, elements: elements}
	t.keep = min(max(brownianBytes/(4*elements), brownianFewest), brownianMost)
	t.root = &brownianNode{start: round6(float64(a)), end: round6(float64(b))}
	if t.root.start >= t.root.end {
		return nil, fmt.Errorf("brownian interval %v..%v: shorter than the tolerance 1e-6", a, b)
	}
	w := NewGenerator(spawnedSeed(seed)).Randn(elements)
	scale := float32(math.Sqrt(float64(b) - float64(a)))
	for k := range w {
		w[k] = mul(w[k], scale)
	}
	t.root.w = w
	return t, nil
}

// Increment returns (W(s1) - W(s0)) / sqrt|s1 - s0| in a new slice: standard normal values with the sign of a motion
// from s0 to s1. Arguments outside the interval are clamped to it. Equal arguments give NaN.
func (t *BrownianTree) Increment(s0, s1 float32) []float32 {
	a, b, sign := s0, s1, float32(1)
	if !(a < b) {
		a, b, sign = s1, s0, -1
	}
	out := make([]float32, t.elements)
	within := func(v float32) float64 { return round6(min(max(float64(v), t.root.start), t.root.end)) }
	low, high := within(a), within(b)
	if low < high {
		t.sum(t.root, low, high, out, new(bool))
	}
	root := sqrt32(float32(math.Abs(float64(s1 - s0))))
	for k := range out {
		out[k] = mul(out[k], sign) / root
	}
	return out
}

// sum adds to out, from left to right, the increments of the dyadic intervals below n that make up [a, b].
func (t *BrownianTree) sum(n *brownianNode, a, b float64, out []float32, started *bool) {
	if a == n.start && b == n.end {
		w := t.increment(n)
		if !*started {
			copy(out, w)
			*started = true
			return
		}
		for k := range out {
			out[k] += w[k]
		}
		return
	}
	if n.left == nil {
		t.split(n)
	}
	switch {
	case b <= n.middle:
		t.sum(n.left, a, b, out, started)
	case a >= n.middle:
		t.sum(n.right, a, b, out, started)
	default:
		t.sum(n.left, a, n.middle, out, started)
		t.sum(n.right, n.middle, b, out, started)
	}
}

// split creates the two halves of n and the seed that divides its increment.
func (t *BrownianTree) split(n *brownianNode) {
	n.middle = round6(0.5 * (n.end + n.start))
	n.seed = spawnedSeed(t.entropy, n.key, n.depth)
	n.left = &brownianNode{start: n.start, end: n.middle, key: 2 * n.key, depth: n.depth + 1, parent: n}
	n.right = &brownianNode{start: n.middle, end: n.end, key: 2*n.key + 1, depth: n.depth + 1, parent: n}
}

// increment returns W(end) - W(start) of n. A missing one is computed together with its sibling's from the parent's, by
// a Brownian bridge.
func (t *BrownianTree) increment(n *brownianNode) []float32 {
	if n == t.root {
		return n.w
	}
	if n.w != nil {
		at := slices.Index(t.cached, n)
		t.cached = append(append(t.cached[:at:at], t.cached[at+1:]...), n)
		return n.w
	}
	p := n.parent
	whole := t.increment(p)
	inverse := 1 / (p.end - p.start)
	left, right := p.middle-p.start, p.end-p.middle
	spread := float32(math.Sqrt(left * right * inverse))
	part, scale := float32(left), float32(inverse)
	first, second := NewGenerator(p.seed).Randn(t.elements), make([]float32, t.elements)
	for k, z := range first {
		v := mul(mul(part, whole[k]), scale) + mul(spread, z)
		first[k], second[k] = v, whole[k]-v
	}
	t.store(p.left, first)
	t.store(p.right, second)
	return n.w
}

// store caches an increment and evicts the least recently used one if there are too many.
func (t *BrownianTree) store(n *brownianNode, w []float32) {
	if n.w != nil {
		return
	}
	n.w = w
	t.cached = append(t.cached, n)
	if len(t.cached) > t.keep {
		t.cached[0].w = nil
		t.cached = t.cached[1:]
	}
}

// round6 rounds to six decimals, the tree's tolerance, with ties on the exact value to even.
func round6(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'f', 6, 64), 64) // always parses
	return r
}
