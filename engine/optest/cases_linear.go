package optest

import (
	"fmt"
	"slices"

	"patchbay/engine"
)

// sizes lists [rows, N, K] with tails of 1 to 17, primes and sizes larger than any kernel's tile.
func sizes() [][3]int {
	list := [][3]int{
		{0, 5, 4},
		{1, 67, 129},
		{2, 1, 1},
		{97, 31, 64},
		{33, 128, 96},
		{5, 200, 257},
		{130, 70, 300},
		{64, 64, 64},
		{7, 19, 1031},
	}
	for i := 1; i <= 17; i++ {
		list = append(list, [3]int{i, 18 - i, i*7%19 + 1}, [3]int{19 - i, 32 + i, 16 + i})
	}
	return list
}

func linearCases() []testCase {
	var cases []testCase
	for i, s := range sizes() {
		for _, stored := range []engine.DType{engine.F32, engine.BF16, engine.F16} {
			cases = append(cases, linearCase(s, stored, i%epilogues))
		}
	}
	for e := range epilogues {
		cases = append(cases, linearCase([3]int{12, 37, 65}, engine.F32, e), linearCase([3]int{30, 64, 32}, engine.BF16, e))
	}
	for _, stored := range []engine.DType{engine.F8E4M3, engine.F8E5M2} {
		for _, scale := range []float32{0, 0.37} {
			tol := linearTol(33)
			if scale != 0 {
				tol.rel = 1.0 / 128 // a scaled fp8 value may be stored as bf16
			}
			cases = append(cases, testCase{name: fmt.Sprintf("Linear/%s scale %g", stored, scale), tol: tol, run: func(r *rig) {
				x, y := r.in("x", 5, 33), r.out("y", 5, 21)
				r.ops.Linear(y, x, &engine.Weight{Base: r.pack(21, 33, 0, stored, scale)}, engine.Epilogue{})
			}})
		}
	}
	return slices.Concat(cases, roundedCases(), blockCases(), narrowCases(), []testCase{packedViewCase()})
}

// epilogues is the number of variants of linearCase.
const epilogues = 12

// linearCase is one product with variant e of batch, bias, activation, gate, residual and adapters. rotated is the
// rotation group of an i8 weight.
func linearCase(size [3]int, stored engine.DType, e int, rotated ...int) testCase {
	rows, n, k := size[0], size[1], size[2]
	name := fmt.Sprintf("Linear/%v %s epilogue %d%v", size, stored, e, rotated)
	return testCase{name: name, tol: linearTol(k), run: func(r *rig) {
		lead := []int{rows}
		if batch := []int{0, 1, 2, 3, 2}[e%5]; batch > 0 && rows%batch == 0 {
			lead = []int{batch, rows / batch}
		}
		x := r.in("x", append(append([]int(nil), lead...), k)...)
		var ranks []int
		if e%4 == 3 {
			ranks = []int{4, 9}
		}
		if len(rotated) > 0 {
			r.rotated = rotated[0]
		}
		w := r.weight(n, k, 0, stored, e%3 != 0, ranks...)
		ep := engine.Epilogue{Act: engine.Act(e % 6), NoBias: e%6 == 4}
		shape := append(append([]int(nil), lead...), n)
		var y engine.Tensor
		switch {
		case e%3 == 1:
			y = r.inout("y and residual", shape...)
			ep.Residual = y
		case e%3 == 2:
			ep.Residual = r.in("residual", shape...)
			fallthrough
		default:
			y = r.out("y", shape...)
		}
		if e%2 == 1 {
			groups := 1
			if len(lead) == 2 && e%4 == 1 {
				groups = lead[0]
			}
			ep.Gate = r.f32("gate", groups, n)
		}
		r.ops.Linear(y, x, w, ep)
	}}
}

// roundedCases covers products with 8-bit weights. Every backend rounds x to the same numbers, so the tolerance is that
// of the other products.
func roundedCases() []testCase {
	var cases []testCase
	for i, s := range append(sizes(), [3]int{30, 70, 256}, [3]int{5, 33, 1024}, [3]int{129, 40, 6208}) {
		group := 0
		for _, g := range []int{4, 16, 64, 256} {
			if i%2 == 0 && s[2]%g == 0 {
				group = g
			}
		}
		cases = append(cases, linearCase(s, engine.I8, i%epilogues, group))
	}
	return append(cases, testCase{name: "Linear/i8 of 0", tol: linearTol(16), run: func(r *rig) {
		zeros := r.alloc("x", r.dtype, func() float32 { return 0 }, 2, 16)
		r.ops.Linear(r.out("y", 2, 9), zeros, r.weight(9, 16, 0, engine.I8, true), engine.Epilogue{})
	}})
}

// packedViewCase multiplies a slice of packed rows into a slice of other packed rows, as models do with q in
// [B, L, 3, H, D], with a gate of two rows that serve two items each.
func packedViewCase() testCase {
	return testCase{name: "Linear/views and G = B/2", tol: linearTol(24), run: func(r *rig) {
		x, y := r.in("x", 4, 5, 3, 24), r.alloc("y", r.dtype, nan, 4, 5, 2, 17)
		gate := r.f32("gate", 2, 17)
		r.ops.Linear(r.writes(y.Index(2, 1)), x.Index(2, 1), r.weight(17, 24, 0, engine.F32, true),
			engine.Epilogue{Gate: gate, Act: engine.SiLU})
	}}
}

func gatherCases() []testCase {
	var cases []testCase
	for _, stored := range []engine.DType{engine.F32, engine.BF16, engine.F16, engine.F8E4M3} {
		for _, e := range []int{1, 7, 16, 33} {
			cases = append(cases, testCase{name: fmt.Sprintf("Gather/%s E=%d", stored, e), tol: exact(), run: func(r *rig) {
				table := r.table(stored, 11, e)
				ids := []int32{10, 0, 3, 3, 7}
				r.ops.Gather(r.out("y", len(ids), e), table, ids)
				clear(ids) // Gather must have read them by now
				r.ops.Gather(r.out("empty", 0, e), table, nil)
			}})
		}
	}
	return cases
}

// table returns a contiguous [v, e] table of any weight type. Its bytes are uploaded as f32 words, because transfers do
// not support every weight type.
func (r *rig) table(stored engine.DType, v, e int) engine.Tensor {
	values := make([]float32, v*e)
	for i := range values {
		values[i] = r.normal()
	}
	data := make([]byte, (len(values)*stored.Size()+3)/4*4)
	engine.Narrow(data, values, stored)
	words := make([]float32, len(data)/4)
	engine.Widen(words, data, engine.F32)
	next := 0
	gapped := r.gapped
	r.gapped = false
	t := r.alloc("table", engine.F32, func() float32 { next++; return words[next-1] }, len(words))
	r.gapped = gapped
	view := engine.NewTensor(t.Buf, stored, v, e)
	view.Off = guard * 4 / stored.Size()
	return view
}

func meanRowsCases() []testCase {
	var cases []testCase
	for _, s := range [][3]int{{1, 1, 1}, {2, 5, 7}, {3, 17, 33}, {1, 130, 16}, {0, 3, 4}} {
		cases = append(cases, testCase{name: fmt.Sprintf("MeanRows/%v", s), tol: normTol(), run: func(r *rig) {
			r.ops.MeanRows(r.out("y", s[0], s[2]), r.in("x", s[0], s[1], s[2]))
		}})
	}
	return cases
}
