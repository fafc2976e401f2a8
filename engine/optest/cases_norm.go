package optest

import (
	"fmt"

	"patchbay/engine"
)

// rowSizes lists [B, L, E] with every tail of E from 1 to 17.
func rowSizes() [][3]int {
	list := [][3]int{{0, 3, 8}, {2, 0, 8}, {4, 3, 64}, {1, 2, 257}, {2, 2, 1024}, {4, 1, 31}}
	for e := 1; e <= 17; e++ {
		list = append(list, [3]int{1 + e%4, 1 + e%3, e})
	}
	return list
}

// shifted returns an activation with a mean far from 0, where the variance from a sum of squares would cancel.
func (r *rig) shifted(label string, shape ...int) engine.Tensor {
	return r.alloc(label, r.dtype, func() float32 { return 30 + 3*r.normal() }, shape...)
}

// target returns a separate output, or x itself where the case works in place.
func (r *rig) target(inPlace bool, x engine.Tensor) engine.Tensor {
	if inPlace {
		return r.writes(x)
	}
	return r.out("y", x.Shape()...)
}

func layerNormCases() []testCase {
	var cases []testCase
	for i, s := range rowSizes() {
		tol := normTol()
		tol.rel = 3e-5 // the mean of 30 costs one decimal digit
		cases = append(cases, testCase{name: fmt.Sprintf("LayerNorm/%v", s), tol: tol, run: func(r *rig) {
			x := r.shifted("x", s[0], s[1], s[2])
			var w, b engine.Tensor
			if i%2 == 0 {
				w = r.f32("w", s[2])
			}
			if i%4 < 2 {
				b = r.f32("b", s[2])
			}
			r.ops.LayerNorm(r.target(i%3 == 0, x), x, w, b, 1e-5)
			flat := r.in("matrix", s[1], s[2])
			r.ops.LayerNorm(r.target(i%3 == 1, flat), flat, w, b, 1e-6)
		}})
	}
	return cases
}

func rmsNormCases() []testCase {
	var cases []testCase
	for i, s := range rowSizes() {
		cases = append(cases, testCase{name: fmt.Sprintf("RMSNorm/%v", s), tol: normTol(), run: func(r *rig) {
			x := r.in("x", s[0], s[1], s[2])
			var w engine.Tensor
			if i%2 == 0 {
				w = r.f32("w", s[2])
			}
			r.ops.RMSNorm(r.target(i%3 == 0, x), x, w, 1e-6)
			deep := r.in("heads", s[0], s[1], 3, s[2])
			r.ops.RMSNorm(r.target(i%3 == 1, deep), deep, w, 1e-6)
		}})
	}
	return cases
}

// groupsOf returns a number of modulation rows that divides b: 1, b/2 or b, depending on i.
func groupsOf(b, i int) int {
	switch {
	case b == 0 || i%3 == 0:
		return 1
	case i%3 == 1 && b%2 == 0:
		return b / 2
	}
	return b
}

func adaLNCases() []testCase {
	var cases []testCase
	for i, s := range rowSizes() {
		for j := range 4 {
			tol := normTol()
			tol.rel = 3e-5
			cases = append(cases, testCase{name: fmt.Sprintf("AdaLN/%v operands %d", s, j), tol: tol, run: func(r *rig) {
				x := r.shifted("x", s[0], s[1], s[2])
				var shift, scale engine.Tensor
				if j&1 != 0 {
					shift = r.f32("shift", groupsOf(s[0], i), s[2])
				}
				if j&2 != 0 {
					scale = r.f32("scale", groupsOf(s[0], i+j), s[2])
				}
				r.ops.AdaLN(r.target((i+j)%2 == 0, x), x, shift, scale, 1e-6)
			}})
		}
	}
	return cases
}

func gatedAddCases() []testCase {
	var cases []testCase
	for i, s := range rowSizes() {
		for j := range 4 {
			cases = append(cases, testCase{
				name: fmt.Sprintf("GatedAdd/%v operands %d", s, j), tol: pointTol(),
				run: func(r *rig) {
					x, res := r.in("x", s[0], s[1], s[2]), r.in("r", s[0], s[1], s[2])
					var gate, bias engine.Tensor
					if j&1 != 0 {
						gate = r.f32("gate", groupsOf(s[0], i), s[2])
					}
					if j&2 != 0 {
						bias = r.f32("bias", s[2])
					}
					y := []engine.Tensor{x, res, {}}[(i+j)%3]
					if y.IsZero() {
						y = r.out("y", s[0], s[1], s[2])
					}
					r.ops.GatedAdd(r.writes(y), x, gate, res, bias)
				},
			})
		}
	}
	return cases
}

func addCases() []testCase {
	var cases []testCase
	for i, s := range rowSizes() {
		for _, b := range [][3]int{s, {1, s[1], s[2]}, {1, 1, s[2]}} {
			cases = append(cases, testCase{name: fmt.Sprintf("Add/%v + %v", s, b), tol: pointTol(), run: func(r *rig) {
				x, other := r.in("a", s[0], s[1], s[2]), r.in("b", b[0], b[1], b[2])
				r.ops.Add(r.target(i%2 == 0, x), x, other)
			}})
		}
		cases = append(cases, testCase{name: fmt.Sprintf("Add/matrix %v", s), tol: pointTol(), run: func(r *rig) {
			x, other := r.in("a", s[1], s[2]), r.in("b", s[1], s[2])
			r.ops.Add(r.target(i%2 == 1, x), x, other)
		}})
	}
	return cases
}
