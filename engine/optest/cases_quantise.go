package optest

import (
	"fmt"
	"math"

	"patchbay/engine"
)

// bytesOf returns a writable 8-bit operand of zeros that lies in a slab of f32 words, so that words are compared. The
// codes of finite numbers never form a NaN word.
func (r *rig) bytesOf(label string, shape ...int) engine.Tensor {
	r.t.Helper()
	last := len(shape) - 1
	words := append(append([]int(nil), shape[:last]...), (shape[last]+3)/4)
	held := r.writes(r.alloc(label, engine.F32, func() float32 { return 0 }, words...))
	padded := append([]int(nil), words...)
	for i := range padded {
		if r.gapped {
			padded[i] += 1 + 2*(i%2) // as alloc does
		}
	}
	padded[last] *= 4
	view := engine.NewTensor(held.Buf, engine.F8E4M3, padded...)
	view.Off = 4 * guard
	for i, s := range shape {
		lo := (padded[i] - s + 1) / 2
		if i == last {
			lo = 4 * ((padded[i]/4 - words[i] + 1) / 2)
		}
		view = view.Slice(i, lo, lo+s)
	}
	return view
}

// quantiseCases compares the codes, the scales and the dequantized numbers bit by bit. Rows hold normal numbers of
// several magnitudes, zeros, ties and the largest number of the format.
func quantiseCases() []testCase {
	var cases []testCase
	for _, s := range [][]int{
		{1, 1},
		{3, 4},
		{2, 3, 7},
		{2, 5, 3, 8},
		{2, 3, 2, 5, 33},
		{1, 9, 2, 4, 64},
		{1, 70, 2, 6, 128},
		{2, 0, 2, 3, 8},
	} {
		cases = append(cases, testCase{name: fmt.Sprintf("Quantise/%v", s), tol: exact(), run: func(r *rig) {
			n := 0
			x := r.alloc("x", r.dtype, func() float32 {
				n++
				switch row := (n - 1) / s[len(s)-1]; {
				case row%7 == 3:
					return 0
				case row%7 == 5: // exact codes, and midpoints between two codes
					return []float32{448, 2.25, -2.75, 0.0146484375, 0.0009765625, 0.0029296875, -0.03125, 17}[n%8]
				default:
					return r.normal() * float32(math.Ldexp(1, 5*(row%9)-20))
				}
			}, s...)
			q, scale := r.bytesOf("q", s...), r.writes(r.alloc("scale", engine.F32, nan, s[:len(s)-1]...))
			r.ops.Quantise(q, scale, x)
			r.ops.Dequantise(r.out("y", s...), q, scale)
		}})
	}
	cases = append(cases, testCase{name: "Quantise/edges", tol: exact(), run: func(r *rig) {
		for i, v := range []float32{0, float32(math.Copysign(0, -1)), 0x1p-149, 0x1p-118, 0x1p-117, 3.3e38, -3.3e38} {
			x := r.alloc(fmt.Sprint("x", i), r.dtype, func() float32 { return v }, 1, 5)
			q, scale := r.bytesOf(fmt.Sprint("q", i), 1, 5), r.writes(r.alloc(fmt.Sprint("scale", i), engine.F32, nan, 1))
			r.ops.Quantise(q, scale, x)
			r.ops.Dequantise(r.out(fmt.Sprint("y", i), 1, 5), q, scale)
		}
	}})
	return cases
}
