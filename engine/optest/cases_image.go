package optest

import (
	"fmt"
	"math"

	"patchbay/engine"
)

// convSize is one convolution: input [b, y, x, c], n output channels and the arguments.
type convSize struct {
	b, y, x, c, n int
	a             engine.ConvArgs
}

func convSizes() []convSize {
	same := engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Top: 1, Bottom: 1, Left: 1, Right: 1}
	list := []convSize{
		{1, 1, 1, 1, 1, engine.ConvArgs{KY: 1, KX: 1, Stride: 1}},
		{2, 5, 7, 4, 3, same},
		{1, 8, 6, 16, 32, same},
		{1, 3, 70, 3, 17, same},
		// downsampling pads the bottom and right edges only
		{1, 7, 8, 5, 9, engine.ConvArgs{KY: 3, KX: 3, Stride: 2, Bottom: 1, Right: 1}},
		// a band in the middle of an image, whose halo rows are part of x
		{1, 6, 5, 8, 8, engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Left: 1, Right: 1}},
		{1, 5, 5, 8, 8, engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Top: 1, Left: 1, Right: 1}}, // the first band
		{2, 6, 8, 4, 24, engine.ConvArgs{KY: 2, KX: 2, Stride: 2}},                           // patch embedding
		{1, 9, 4, 33, 65, engine.ConvArgs{KY: 1, KX: 1, Stride: 1}},                          // a linear layer
		{1, 4, 9, 2, 5, engine.ConvArgs{KY: 1, KX: 5, Stride: 1, Left: 2, Right: 2}},         // one row high
		// more padding than one kernel overlap
		{1, 9, 4, 2, 5, engine.ConvArgs{KY: 5, KX: 1, Stride: 3, Top: 4, Bottom: 4}},
		{1, 2, 2, 3, 4, engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Left: 1, Right: 1}}, // kernel too large: no rows
		{0, 4, 4, 3, 4, same}, // no items
		{1, 12, 11, 40, 48, same},
	}
	for c := 1; c <= 17; c++ {
		list = append(list, convSize{1, 3, 4, c, 18 - c, same})
	}
	return list
}

func convCases() []testCase {
	var cases []testCase
	for i, s := range convSizes() {
		for _, stored := range []engine.DType{engine.F32, engine.BF16, engine.F16} {
			k := s.a.KY * s.a.KX * s.c
			cases = append(cases, testCase{name: fmt.Sprintf("Conv2D/%+v %s", s, stored), tol: linearTol(k), run: func(r *rig) {
				a := s.a
				outY, outX := max(0, (s.y+a.Top+a.Bottom-a.KY)/a.Stride+1), max(0, (s.x+a.Left+a.Right-a.KX)/a.Stride+1)
				var ranks []int
				if i%4 == 1 {
					ranks = []int{3}
				}
				w := r.weight(s.n, k, s.c, stored, i%3 != 0, ranks...)
				if i%2 == 1 {
					a.Residual = r.in("residual", s.b, outY, outX, s.n)
				}
				r.ops.Conv2D(r.out("y", s.b, outY, outX, s.n), r.in("x", s.b, s.y, s.x, s.c), w, a)
			}})
		}
	}
	return cases
}

// stats returns an f64 output tensor [B, G, 2] filled with NaN.
func (r *rig) stats(b, g int) engine.Tensor {
	return r.writes(r.alloc("stats", engine.F64, nan, b, g, 2))
}

// knownStats returns an f64 tensor [B, G, 2] with the sum and the sum of squares of count random elements per group.
func (r *rig) knownStats(b, g int, count float64) engine.Tensor {
	values := make([]float64, 2*b*g)
	for i := 0; i < len(values); i += 2 {
		mean := float64(r.normal())
		values[i], values[i+1] = mean*count, (mean*mean+0.5+r.rng.Float64())*count
	}
	next := 0
	halves := func() float32 { // an f64 is uploaded as two 32-bit halves
		bits := math.Float64bits(values[next/2]) >> (32 * (next % 2))
		next++
		return math.Float32frombits(uint32(bits))
	}
	gapped := r.gapped
	r.gapped = false
	t := r.alloc("known stats", engine.F32, halves, 4*b*g)
	r.gapped = gapped
	view := engine.NewTensor(t.Buf, engine.F64, b, g, 2)
	view.Off = guard / 2
	return view
}

func groupNormCases() []testCase {
	var cases []testCase
	for i, s := range [][5]int{ // B, Y, X, C, G
		{1, 1, 1, 1, 1},
		{2, 3, 5, 8, 2},
		{1, 4, 4, 64, 32},
		{1, 7, 9, 12, 3},
		{2, 16, 16, 32, 4},
		{1, 0, 4, 8, 2},
		{3, 2, 3, 17, 17},
		{1, 5, 3, 33, 3},
		{1, 33, 31, 6, 1},
	} {
		act := acts()[i%len(acts())]
		cases = append(cases,
			testCase{name: fmt.Sprintf("GroupNormStats/%v", s), tol: tolerance{rel: 1e-6, bf16: 1e-6}, run: func(r *rig) {
				r.ops.GroupNormStats(r.stats(s[0], s[4]), r.shifted("x", s[0], s[1], s[2], s[3]), s[4])
			}},
			testCase{name: fmt.Sprintf("GroupNormApply/%v act %d", s, act), tol: normTol(), run: func(r *rig) {
				x, w, b := r.in("x", s[0], s[1], s[2], s[3]), r.f32("w", s[3]), r.f32("b", s[3])
				count := max(1, s[1]*s[2]*s[3]/s[4])
				stats := r.knownStats(s[0], s[4], float64(count))
				r.ops.GroupNormApply(r.target(i%2 == 0, x), x, stats, w, b, count, 1e-6, act)
			}})
	}
	return cases
}
