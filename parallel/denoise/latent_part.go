package denoise

import (
	"math"
	"slices"

	"patchbay/models/dit"
)

// latentPart is the part of the latent that one sampler instance owns: everything, or the tokens of one patch. Its
// vectors are [B, n]: of each item's whole vector, the elements [from, from+n).
type latentPart struct {
	d       *denoiser
	index   int
	tokens  dit.Range // image tokens
	from, n int

	noise, latent, mask, maskNoise []float32
	weights                        [][]float32 // per prediction, [n] or [B, n]; nil: 1 everywhere

	evaluations, predicted int

	// of what a step cache may answer: output minus input, [B, n], by prediction or under guidedKey
	differences map[int][]float32
	uncond      []float32 // the last unconditional prediction beside a guided one
}

// question is a part's request for one evaluation.
type question struct {
	x, input []float32 // latent of the part, and the network's input made of it
	sigma    float32
	active   []int // predictions wanted
}

// answer is the reply to a question.
type answer struct {
	run      []int       // predictions that the network made
	outputs  [][]float32 // of run: rows [B, tokens, FeaturesOut]
	replayed bool        // in an earlier run
	reused   bool        // nothing runs: the cache answers the whole evaluation
	cached   cached
}

// cached says what a step cache answers, or keeps for later answers, in an evaluation.
type cached uint8

const (
	cachedNothing cached = iota // it is not involved
	cachedOutputs               // outputs of the network, by prediction
	cachedGuided                // the guided prediction
)

// guidedKey is the key of the guided prediction where outputs are kept by prediction.
const guidedKey = -1

func (d *denoiser) newLatentPart(index int, tokens dit.Range) *latentPart {
	s := &latentPart{d: d, index: index, tokens: tokens}
	s.from = d.whole.first(tokens.Start)
	s.n = d.whole.first(tokens.End) - s.from
	s.noise, s.latent = s.cut(d.noise), s.cut(d.latent)
	if d.mask != nil {
		s.mask, s.maskNoise = s.cut(d.mask), s.cut(d.maskNoise)
	}
	for _, p := range d.preds {
		s.weights = append(s.weights, s.cut(p.weight))
	}
	return s
}

// cut copies the part's elements out of a vector of one or all items. It returns v itself if it is nil or the part is
// everything.
func (s *latentPart) cut(v []float32) []float32 {
	if v == nil || s.n == s.d.n {
		return v
	}
	out := make([]float32, 0, len(v)/s.d.n*s.n)
	for i := 0; i < len(v); i += s.d.n {
		out = append(out, v[i+s.from:i+s.from+s.n]...)
	}
	return out
}

// paste is the inverse of cut.
func (s *latentPart) paste(whole, v []float32) {
	for i := range len(whole) / s.d.n {
		copy(whole[i*s.d.n+s.from:], v[i*s.n:(i+1)*s.n])
	}
}

// eachSound calls visit with where the sound of each item lies in a vector of the part.
func (s *latentPart) eachSound(v []float32, visit func(at, end int)) {
	g := s.d.whole.grid
	video := s.d.n - s.d.req.Latent.Sound.Len()
	if first := min(max(video-s.from, 0), s.n); g.Sound > 0 && first < s.n {
		for at := 0; at < len(v); at += s.n {
			visit(at+first, at+s.n)
		}
	}
}

// write calls set for every element of the part that l covers, like layout.write.
func (s *latentPart) write(l *layout, features int, set func(at, row int)) {
	tokens := s.tokens
	if l != s.d.whole {
		tokens = dit.Range{End: l.grid.Tokens()} // areas are evaluated by one part that owns everything
	}
	l.write(s.d.req.Latent.B, s.n, s.from, tokens, features, set)
}

// knows reports whether the part has kept a difference for each of the entries.
func (s *latentPart) knows(entries []int) bool {
	return !slices.ContainsFunc(entries, func(i int) bool { return s.differences[i] == nil })
}

// reuse answers a prediction from the cache: input + kept difference, [B, n].
func (s *latentPart) reuse(entry int, input []float32) []float32 {
	out := make([]float32, len(input))
	for i, v := range s.differences[entry] {
		out[i] = input[i] + v
	}
	return out
}

// keep stores the difference between a prediction's output and its input.
func (s *latentPart) keep(entry int, input, output []float32) {
	v := s.differences[entry]
	if v == nil {
		if s.differences == nil {
			s.differences = map[int][]float32{}
		}
		v = make([]float32, len(input))
		s.differences[entry] = v
	}
	for i, o := range output {
		v[i] = o - input[i]
	}
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
