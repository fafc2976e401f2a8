package optest

import (
	"fmt"

	"patchbay/engine"
)

// acts lists every activation function.
func acts() []engine.Act {
	return []engine.Act{
		engine.ActNone, engine.GELUTanh, engine.GELUErf, engine.SiLU, engine.QuickGELU, engine.ReLU, engine.Sigmoid,
	}
}

// wide draws numbers that reach the saturated ends of every activation function.
func (r *rig) wide() float32 {
	v := 3 * r.normal()
	if r.rng.IntN(8) == 0 {
		v *= 30 // beyond the range of exp
	}
	return v
}

func activateCases() []testCase {
	var cases []testCase
	for _, act := range acts() {
		for i, s := range rowSizes() {
			cases = append(cases, testCase{name: fmt.Sprintf("Activate/%d %v", act, s), tol: pointTol(), run: func(r *rig) {
				small := r.in("small", s[0], s[1], s[2])
				r.ops.Activate(r.target(i%2 == 0, small), small, act)
				x := r.alloc("x", r.dtype, r.wide, s[1], s[2])
				r.ops.Activate(r.target(i%2 == 1, x), x, act)
			}})
		}
	}
	return cases
}

func activateMulCases() []testCase {
	var cases []testCase
	for _, act := range acts() {
		for i, s := range rowSizes() {
			cases = append(cases, testCase{name: fmt.Sprintf("ActivateMul/%d %v", act, s), tol: pointTol(), run: func(r *rig) {
				// models often pass the two halves of one product
				both := r.alloc("a and b", r.dtype, r.wide, s[0], s[1], 2, s[2])
				a, b := both.Index(2, 0), both.Index(2, 1)
				y := []engine.Tensor{a, b, {}}[i%3]
				if y.IsZero() {
					y = r.out("y", s[0], s[1], s[2])
				}
				r.ops.ActivateMul(r.writes(y), a, b, act)
			}})
		}
	}
	return cases
}
