package sampling

import (
	"fmt"
	"slices"
	"sync"

	"patchbay/fault"
)

// PrepareNoise returns the noise a run starts from: randn of a latent of batch items of item elements each
// (contiguous), from a generator seeded with seed. With indices (a latent's batch_index) items are drawn one by one up
// to the largest index, and those named are returned in the order of indices, so that there are len(indices) of them.
// The second result is the generator after these draws, from which churn noise continues.
func PrepareNoise(seed uint64, batch, item int, indices []int) ([]float32, *Generator, error) {
	g := NewGenerator(seed)
	out, err := g.Batch(batch, item, indices)
	return out, g, err
}

// Batch draws noise for the items of a batch. With indices there is one draw for each item up to the largest index, and
// item i of the result gets draw indices[i]; otherwise one draw is for all items.
func (g *Generator) Batch(batch, item int, indices []int) ([]float32, error) {
	if batch < 1 || item < 1 {
		return nil, fmt.Errorf("noise of %d items of %d elements: want 1 or more of each", batch, item)
	}
	if indices == nil {
		return g.Randn(batch * item), nil
	}
	if len(indices) == 0 || slices.Min(indices) < 0 || slices.Max(indices) > 1<<20 {
		return nil, fmt.Errorf("batch_index %v: want numbers from 0 to %d", indices, 1<<20)
	}
	out := make([]float32, len(indices)*item)
	for i := range slices.Max(indices) + 1 {
		drawn := g.Randn(item)
		for at, want := range indices {
			if want == i {
				copy(out[at*item:], drawn)
			}
		}
	}
	return out, nil
}

// MaskNoise returns the noise that the ddim sampler mixes into the kept part of a masked latent: one randn from seed+1
// (with wraparound).
func MaskNoise(seed uint64, elements int) []float32 {
	return NewGenerator(seed + 1).Randn(elements)
}

// NoiseKind tells where a sampler's noise comes from.
type NoiseKind int

// The kinds of noise.
const (
	// NoNoise means that the sampler draws nothing.
	NoNoise NoiseKind = iota
	// Continued continues the generator that made the initial noise (churn).
	Continued
	// Ancestral uses a new generator, seeded with seed+1 (with wraparound).
	Ancestral
	// Brownian uses increments of a BrownianTree between the two sigmas.
	Brownian
)

// Draws provides the random numbers of one sampling run over the whole latent. The n-th draw is the same for every
// caller, so samplers that own parts of the latent can share one Draws and each take their own elements. It is safe for
// concurrent use.
type Draws struct {
	elements int
	stream   *Generator
	tree     *BrownianTree
	mu       sync.Mutex
	drawn    map[int][]float32
	next     int
}

// NewDraws returns the draws for a run of a sampler of the given kind over elements values. sigmas are those the run
// starts with; Brownian can only draw if two different ones are positive. stream is the generator that PrepareNoise
// returned; only Continued uses it, and it must not be used elsewhere afterwards. If it is nil, as for a run without
// drawn initial noise, a new generator with the seed is used (torch would continue from whatever ran before).
func NewDraws(kind NoiseKind, seed uint64, elements int, sigmas []float32, stream *Generator) (_ *Draws, err error) {
	d := &Draws{elements: elements, drawn: map[int][]float32{}}
	switch kind {
	case NoNoise:
	case Continued:
		d.stream = stream
		if stream == nil {
			d.stream = NewGenerator(seed)
		}
	case Ancestral:
		d.stream = NewGenerator(seed + 1)
	case Brownian:
		if low, high := sigmaRange(sigmas); low < high {
			d.tree, err = NewBrownianTree(seed, elements, low, high)
		}
	default:
		err = fmt.Errorf("noise kind %d: want 0 to 3", int(kind))
	}
	return d, err
}

// sigmaRange returns the smallest positive and the largest of sigmas.
func sigmaRange(sigmas []float32) (low, high float32) {
	for _, s := range sigmas {
		high = max(high, s)
		if s > 0 && (low == 0 || s < low) {
			low = s
		}
	}
	return low, high
}

// Draw returns draw number n (from 0) over the whole latent for the interval s0 to s1. The caller must not modify it.
// It returns an error if the run has no noise, for equal sigmas of a Brownian motion, and for a forgotten draw of a
// generator.
func (d *Draws) Draw(n int, s0, s1 float32) ([]float32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v, ok := d.drawn[n]; ok {
		return v, nil
	}
	if d.stream == nil && s0 == s1 {
		return nil, fault.Bad("sigmas", "two in a row are %v, where the noise of this sampler is no number (in ComfyUI all "+
			"of the picture is then black): leave one out, or use a sampler without noise", s0)
	}
	if d.tree != nil {
		d.drawn[n] = d.tree.Increment(s0, s1)
		return d.drawn[n], nil
	}
	if d.stream == nil {
		return nil, fmt.Errorf("noise between sigmas %v and %v: this run has no noise", s0, s1)
	}
	if n < d.next {
		return nil, fmt.Errorf("noise draw %d was given back, the next is %d", n, d.next)
	}
	for ; d.next <= n; d.next++ {
		d.drawn[d.next] = d.stream.Randn(d.elements)
	}
	return d.drawn[n], nil
}

// Forget frees the draws before n. All instances of the sampler must be past them.
func (d *Draws) Forget(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.drawn {
		if i < n {
			delete(d.drawn, i)
		}
	}
}
