package optest

import (
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
)

// blockCases covers products with block-quantized weights. A backend that keeps the blocks must widen them to the same
// bf16 numbers as one that does not.
func blockCases() []testCase {
	var cases []testCase
	for _, kind := range []gguf.Type{gguf.Q8v0, gguf.Q4v0, gguf.Q4K, gguf.Q5K, gguf.Q6K} {
		for i, s := range [][3]int{{1, 70, 256}, {30, 33, 768}, {113, 8, 1280}, {5, 40, 512}} {
			cases = append(cases, testCase{
				name: fmt.Sprintf("Linear/%v %s", s, kind), tol: linearTol(s[2]),
				run: func(r *rig) {
					x, y := r.in("x", s[0], s[2]), r.inout("y", s[0], s[1])
					w := &engine.Weight{Name: "blocks", Base: r.packBlocks(kind, s[1], s[2]), Bias: r.f32("bias", s[1])}
					if i%2 == 1 {
						w.Adapters = []engine.Adapter{{
							Down: r.pack(3, s[2], 0, engine.F32, 0), Up: r.pack(s[1], 3, 0, engine.BF16, 0), Scale: 0.75,
						}}
					}
					r.ops.Linear(y, x, w, engine.Epilogue{Act: engine.SiLU, Residual: y})
				},
			})
		}
		// with batched, gated items; where a block has 32 elements, a row is not a multiple of 16 bytes
		k := 3 * kind.Blocks().Elements
		for _, rows := range []int{2, 7} {
			cases = append(cases, testCase{
				name: fmt.Sprintf("Linear/[3, %d, %d] by %d %s", rows, k, 26, kind), tol: linearTol(k),
				run: func(r *rig) {
					x, y := r.in("x", 3, rows, k), r.out("y", 3, rows, 26)
					w := &engine.Weight{Name: "blocks", Base: r.packBlocks(kind, 26, k)}
					r.ops.Linear(y, x, w, engine.Epilogue{Residual: r.in("residual", 3, rows, 26), Gate: r.f32("gate", 3, 26)})
				},
			})
		}
	}
	return cases
}

// narrowCases covers the other forms that stay as they are, with the same bf16 numbers: rows of whole and of cut pieces
// of 256 inputs.
func narrowCases() []testCase {
	var cases []testCase
	add := func(form string, n int, s [3]int, scale float32, pack func(r *rig) *engine.Packed) {
		tol := linearTol(s[2])
		if scale != 0 {
			tol.rel = 1.0 / 128 // a scaled value may be rounded to bf16
		}
		cases = append(cases, testCase{
			name: fmt.Sprintf("Linear/%v %s scale %g", s, form, scale), tol: tol,
			run: func(r *rig) {
				x, y := r.in("x", s[0], s[2]), r.inout("y", s[0], s[1])
				w := &engine.Weight{Name: "narrow", Base: pack(r), Bias: r.f32("bias", s[1])}
				if n%2 == 1 {
					w.Adapters = []engine.Adapter{{
						Down: r.pack(3, s[2], 0, engine.F32, 0), Up: r.pack(s[1], 3, 0, engine.BF16, 0), Scale: 0.75,
					}}
				}
				r.ops.Linear(y, x, w, engine.Epilogue{Act: engine.SiLU, Residual: y})
			},
		})
	}
	for i, s := range [][3]int{{1, 70, 256}, {30, 33, 776}, {113, 8, 1288}, {5, 40, 8}, {16, 21, 24}, {2, 65, 520}} {
		scale := float32(i%3) * 0.37
		for _, stored := range []engine.DType{engine.F8E4M3, engine.F8E5M2} {
			add(stored.String(), i, s, scale, func(r *rig) *engine.Packed { return r.pack(s[1], s[2], 0, stored, scale) })
			add(stored.String()+" of rows", i, s, 1, func(r *rig) *engine.Packed {
				r.scaled = true
				return r.pack(s[1], s[2], 0, stored, 0)
			})
		}
		add("unrounded i8", i, s, 0, func(r *rig) *engine.Packed {
			r.unrounded = true
			return r.pack(s[1], s[2], 0, engine.I8, 0)
		})
	}
	for i, s := range [][3]int{{1, 70, 256}, {30, 33, 832}, {113, 8, 1344}, {5, 40, 64}, {2, 65, 512}} {
		for _, form := range []*engine.Blocks{engine.NVFP4(), engine.MXFP8()} {
			scale := float32(i%2) * 0.37
			add(form.Name, i, s, scale, func(r *rig) *engine.Packed { return r.packNarrow(form, s[1], s[2], scale) })
			add(form.Name+" of inputs", i, s, scale+1, func(r *rig) *engine.Packed {
				r.weighed = true
				return r.packNarrow(form, s[1], s[2], scale)
			})
			add(form.Name+" of rows", i, s, 1, func(r *rig) *engine.Packed {
				r.scaled = true
				return r.packNarrow(form, s[1], s[2], 0)
			})
		}
		for _, group := range []int{16, 64} {
			add(fmt.Sprintf("unrounded i8 in groups of %d", group), i, s, 0, func(r *rig) *engine.Packed {
				r.unrounded, r.rotated = true, group
				return r.pack(s[1], s[2], 0, engine.I8, 0)
			})
		}
	}
	return cases
}

// packNarrow packs a random matrix in a form whose blocks begin with the scales of two groups.
func (r *rig) packNarrow(form *engine.Blocks, n, k int, scale float32) *engine.Packed {
	r.t.Helper()
	row := k
	if r.gapped {
		row += form.Elements
	}
	data := make([]byte, 1+n*row/form.Elements*form.Bytes)
	for i := range data[1:] {
		code := byte(r.rng.IntN(256))
		switch at := i % form.Bytes; {
		case at < 2 && form.Elements == 32:
			code = byte(r.rng.IntN(0x40)) // of E4M3, up to 2
		case at < 2:
			code = byte(110 + r.rng.IntN(10))
		case form.Elements == 64 && code&0x7f == 0x7f: // no number
			code = 0x30
		}
		data[1+i] = code
	}
	m := engine.Matrix{Data: data[1:], DType: engine.BF16, N: n, K: k, Row: row, Blocks: form, Scale: scale}
	m.Scales = r.factors(n)
	if r.weighed {
		r.scaled, r.weighed = true, false
		m.Inputs = r.factors(k)
	}
	p, err := r.ops.Pack(m, 0)
	if err != nil {
		r.t.Fatalf("%s: pack [%d, %d] %s: %v", r.name, n, k, form.Name, err)
	}
	clear(data) // Pack must have read it by now
	r.other = append(r.other, p.Buf)
	return p
}

// packBlocks packs a random block-quantized matrix. In the gapped layout one block lies between its rows.
func (r *rig) packBlocks(kind gguf.Type, n, k int) *engine.Packed {
	r.t.Helper()
	b, row := kind.Blocks(), k
	if r.gapped {
		row += b.Elements
	}
	values := make([]float32, n*row)
	for i := range values {
		values[i] = r.normal() / float32(math.Sqrt(float64(k)))
	}
	data := append([]byte{0}, ggufwrite.Quantise(kind, values)...)
	p, err := r.ops.Pack(engine.Matrix{Data: data[1:], DType: engine.BF16, N: n, K: k, Row: row, Blocks: b}, 0)
	if err != nil {
		r.t.Fatalf("%s: pack [%d, %d] %s: %v", r.name, n, k, kind, err)
	}
	clear(data) // Pack must have read it by now
	r.other = append(r.other, p.Buf)
	return p
}
