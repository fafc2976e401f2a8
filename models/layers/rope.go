package layers

import (
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
)

// Rotation is a host table of cosines and sines [L, D/2].
type Rotation struct {
	Cos, Sin []float32
	Pairs    int // D/2
}

func newRotation(l, pairs int) Rotation {
	return Rotation{Cos: make([]float32, l*pairs), Sin: make([]float32, l*pairs), Pairs: pairs}
}

// set stores the cosine and sine of a phase at index i.
func (r Rotation) set(i int, phase float64) {
	sin, cos := math.Sincos(phase)
	r.Cos[i], r.Sin[i] = float32(cos), float32(sin)
}

// UploadRotation copies the table of l tokens with the given number of pairs to the device, as f32 tensors [L, D/2] of
// the arena. A recording does not compute it.
func UploadRotation(env dit.Env, l, pairs int, table func() Rotation) engine.RoPE {
	r := Rotation{Cos: dit.Undefined(l * pairs), Sin: dit.Undefined(l * pairs)}
	if !env.Arena.Measuring() {
		r = table()
	}
	return engine.RoPE{Cos: Upload(env, r.Cos, l, pairs), Sin: Upload(env, r.Sin, l, pairs)}
}

// PositionRotation returns FLUX's table for tokens at these positions, one coordinate per axis: axis a rotates
// axes[a]/2 pairs with frequencies theta^(-2i/axes[a]) by the token's position on that axis (RoFormer,
// arXiv:2104.09864, section 3.3, one block of frequencies per axis). Computed in f64, stored in f32.
func PositionRotation[P [3]int | [4]int](axes []int, theta float64, positions []P) Rotation {
	return RotationAt(axes, theta, len(positions), func(token, axis int) float64 {
		return float64(positions[token][axis])
	})
}

// RotationAt is PositionRotation for n tokens of which at returns the position on an axis, in parts of a token too.
func RotationAt(axes []int, theta float64, n int, at func(token, axis int) float64) Rotation {
	pairs := 0
	for _, a := range axes {
		pairs += a / 2
	}
	r, next := newRotation(n, pairs), 0
	for token := range n {
		for a, d := range axes {
			pos := at(token, a)
			for i := range d / 2 {
				r.set(next, pos*math.Pow(theta, -float64(2*i)/float64(d)))
				next++
			}
		}
	}
	return r
}

// PhaseRotation returns the table of phases [L, pairs].
func PhaseRotation(phases []float32, pairs int) Rotation {
	r := newRotation(len(phases)/pairs, pairs)
	for i, phase := range phases {
		r.set(i, float64(phase))
	}
	return r
}

// FillRotation returns HunyuanDiT's table for the tokens of g: the grid is scaled into a square of base x base
// positions, centered on its shorter side. The first D/4 pairs rotate by the column, the others by the row (HunyuanDiT,
// arXiv:2405.08748, section 2.1, "Centralized Interpolative Positional Encoding"). Positions, frequencies and phases
// are f32 as in the original.
func FillRotation(d, base int, g dit.Grid) Rotation {
	high, wide := base, base
	if g.Y > g.X {
		wide = roundEven(float64(base) / float64(g.Y) * float64(g.X))
	} else {
		high = roundEven(float64(base) / float64(g.X) * float64(g.Y))
	}
	top, left := roundEven(float64(base-high)/2), roundEven(float64(base-wide)/2)
	quarter := d / 4
	freqs := make([]float32, quarter)
	for i := range freqs {
		exp := float32(2*i) / float32(d/2)
		freqs[i] = 1 / float32(math.Pow(10000, float64(exp)))
	}
	l := g.Tokens()
	r := newRotation(l, 2*quarter)
	for token := range l {
		y := float32(float64(top) + float64(token/g.X)*(float64(high)/float64(g.Y)))
		x := float32(float64(left) + float64(token%g.X)*(float64(wide)/float64(g.X)))
		for i, f := range freqs {
			at := token*2*quarter + i
			r.set(at, float64(x*f))
			r.set(at+quarter, float64(y*f))
		}
	}
	return r
}

// roundEven rounds half to even, as Python's round does.
func roundEven(v float64) int { return int(math.RoundToEven(v)) }
