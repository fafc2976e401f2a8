package text

import (
	"cmp"
	"math"

	"patchbay/models/tokenizer"
)

// positions returns the position of every token on the axes time, row and column. Words have the same position on all
// three, picture tokens (p, p + row, p + column), where p is the position at which the picture starts. Words after it
// go on from p + the larger of its rows and columns (arXiv:2409.12191, sec. 2.1).
func positions(chunk []tokenizer.Token, pictures [][2]int) [][3]int {
	out, at := make([][3]int, 0, len(chunk)), 0
	for i := 0; i < len(chunk); {
		if chunk[i].Vector == nil || len(pictures) == 0 {
			out = append(out, [3]int{at, at, at})
			i, at = i+1, at+1
			continue
		}
		p := pictures[0]
		pictures = pictures[1:]
		for k := range min(p[0]*p[1], len(chunk)-i) {
			out = append(out, [3]int{at, at + k/p[1], at + k%p[1]})
		}
		i, at = i+p[0]*p[1], at+max(p[0], p[1])
	}
	return out
}

// rotation returns cos and sin of position * theta^(-2k/D) / stretch, [l, D/2]; stretch 0 is 1. Of 64 pairs, 16 rotate
// with time and 24 each with row and column. Interleaved, the first 60 rotate with time, row and column in turn and the
// last 4 with time. Of Qwen3.5 the first pairs rotate with time, row and column in turn, as many as delta says, as if
// there were no others, and the others do not.
func (c LMConfig) rotation(at [][3]int, theta, stretch float64) (cos, sin []float32) {
	all, pairs := c.HeadDim/2, c.HeadDim/2
	if c.delta.some() {
		pairs = c.delta.pairs
	}
	for _, p := range at {
		for k := range all {
			if k >= pairs {
				cos, sin = append(cos, 1), append(sin, 0)
				continue
			}
			axis, part := 0, 64*k/pairs
			switch {
			case c.Interleaved && (part < 60 || c.delta.some()):
				axis = k % 3
			case !c.Interleaved && part >= 16:
				axis = 1 + (part-16)/24
			}
			// rounded where torch rounds: positions of a thousand multiply the difference
			f := 1 / float32(math.Pow(theta, float64(k)/float64(pairs))) / float32(cmp.Or(stretch, 1))
			s, co := math.Sincos(float64(float32(p[axis]) * f))
			cos, sin = append(cos, float32(co)), append(sin, float32(s))
		}
	}
	return cos, sin
}

// halvesTogether returns the row order that puts row k+d/2 of every head right after its row k.
func halvesTogether(heads, d int) []int {
	var out []int
	for h := range heads {
		for k := range d / 2 {
			out = append(out, h*d+k, h*d+k+d/2)
		}
	}
	return out
}
