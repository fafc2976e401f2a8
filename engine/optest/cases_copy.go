package optest

import (
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
)

// transferCases covers what Upload, Download and Fill promise beyond the use that every rig makes of them.
func transferCases() []testCase {
	return []testCase{
		{name: "Upload/source is free at once", tol: exact(), run: func(r *rig) {
			gapped := r.gapped
			r.gapped = false
			y := r.out("y", 3, 7)
			r.gapped = gapped
			src := make([]float32, 21)
			for i := range src {
				src[i] = float32(i)*0.25 - 2
			}
			r.ops.Upload(y, src)
			clear(src)
			r.ops.Upload(r.out("empty", 0), nil)
		}},
		{name: "Download/part", tol: exact(), run: func(r *rig) {
			x := r.in("x", 5, 8)
			if !x.Contiguous() {
				x = x.Index(0, 3)
			} else {
				x = x.Slice(0, 2, 4)
			}
			got, wantBits := make([]float32, x.Len()), make([]float32, x.Len())
			pending := r.ops.Download(got, x)
			if err := pending.Wait(); err != nil {
				r.t.Errorf("%s: %v", r.name, err)
			}
			eachElement(x, func(i, off int) { wantBits[i] = r.slabs[0].before[off] })
			if !slices.Equal(got, wantBits) {
				r.t.Errorf("%s: got %v, want %v", r.name, got, wantBits)
			}
		}},
		{name: "Fill", tol: exact(), run: func(r *rig) {
			for i, v := range []float32{0, -1.5, float32(math.Inf(-1)), float32(math.Copysign(0, -1))} {
				r.ops.Fill(r.out("vector", 1+i*8), v)
				r.ops.Fill(r.out("cube", 2, 3, 5+i), v)
			}
			r.ops.Fill(r.out("empty", 3, 0, 2), 1)
		}},
	}
}

func copyCases() []testCase {
	var cases []testCase
	for _, shape := range [][]int{{1}, {17}, {0, 3}, {3, 5}, {2, 3, 33}, {2, 5, 3, 8}, {2, 1, 3, 2, 7}, {64, 65}} {
		cases = append(cases, testCase{name: fmt.Sprintf("Copy/%v", shape), tol: exact(), run: func(r *rig) {
			r.ops.Copy(r.out("y", shape...), r.in("x", shape...))
		}})
		cases = append(cases, testCase{name: fmt.Sprintf("Copy/convert %v", shape), tol: exact(), run: func(r *rig) {
			if r.dtype == engine.BF16 { // otherwise the implementation need not support bf16
				r.ops.Copy(r.out("bf16", shape...), r.f32("x", shape...))
				r.ops.Copy(r.writes(r.alloc("f32", engine.F32, nan, shape...)), r.in("y", shape...))
			}
		}})
	}
	for _, s := range [][3]int{{2, 3, 4}, {1, 17, 5}, {5, 33, 65}} {
		cases = append(cases, testCase{name: fmt.Sprintf("Copy/transposed %v", s), tol: exact(), run: func(r *rig) {
			x := r.in("x", s[0], s[1], s[2])
			r.ops.Copy(r.out("y", s[0], s[2], s[1]), x.Transpose(1, 2))
			// z [s1, s2, s0] viewed as [s0, s1, s2]: the last dimension is not contiguous in the view
			z := r.out("z", s[1], s[2], s[0])
			r.ops.Copy(z.Transpose(1, 2).Transpose(0, 1), x)
		}})
		cases = append(cases, testCase{name: fmt.Sprintf("Copy/broadcast and parts %v", s), tol: exact(), run: func(r *rig) {
			r.ops.Copy(r.out("y", s[0], s[1], s[2]), r.in("x", 1, s[1], s[2]).Broadcast(0, s[0]))
			z := r.alloc("z", r.dtype, nan, s[0], s[1], s[2])
			r.ops.Copy(r.writes(z.Slice(1, 1, s[1])), r.in("part", s[0], s[1]-1, s[2]))
		}})
	}
	return cases
}

func upsampleCases() []testCase {
	var cases []testCase
	for _, s := range [][4]int{{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 4, 2, 33}, {1, 0, 3, 4}, {1, 9, 8, 16}} {
		cases = append(cases, testCase{name: fmt.Sprintf("Upsample2x/%v", s), tol: exact(), run: func(r *rig) {
			r.ops.Upsample2x(r.out("y", s[0], 2*s[1], 2*s[2], s[3]), r.in("x", s[0], s[1], s[2], s[3]))
		}})
	}
	return cases
}
