//go:build cgo && fakegpu

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
)

// blockKinds maps the block formats that stay packed to the byte offsets of the f16 factors in a block.
func blockKinds() map[gguf.Type][]int {
	return map[gguf.Type][]int{gguf.Q8v0: {0}, gguf.Q4v0: {0}, gguf.Q4K: {0, 2}, gguf.Q5K: {0, 2}, gguf.Q6K: {208}}
}

// randomBlocks returns a matrix of random bytes. With finite, its factors are 2^-12 to 2^-11, otherwise any f16.
func (m *bench) randomBlocks(kind gguf.Type, n, k int, finite bool) engine.Matrix {
	b := kind.Blocks()
	w := engine.Matrix{Data: make([]byte, n*k/b.Elements*b.Bytes), DType: engine.BF16, N: n, K: k, Blocks: b}
	for i := range w.Data {
		w.Data[i] = byte(m.rng.IntN(256))
	}
	for at := 0; finite && at < len(w.Data); at += b.Bytes {
		for _, f := range blockKinds()[kind] {
			binary.LittleEndian.PutUint16(w.Data[at+f:], uint16(0x0c00+m.rng.IntN(0x400))) // 2^-12 to 2^-11
		}
	}
	return w
}

// keep packs a matrix.
func (m *bench) keep(w engine.Matrix) *engine.Packed {
	m.t.Helper()
	p, err := m.ops.Pack(w, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.buf = append(m.buf, p.Buf)
	return p
}

// TestNarrowBits checks that rows of random bytes in the other narrow forms widen to the bits of Matrix.Widened,
// factors of matrices and rows included, and take 16 bytes more than in the file, up to the next 16.
func TestNarrowBits(t *testing.T) {
	o := openOps(t)
	const n, k, from = 11, 832, 3
	in := func(b *engine.Blocks) engine.Matrix {
		return engine.Matrix{DType: engine.BF16, Blocks: b, Data: make([]byte, n*k/b.Elements*b.Bytes), Scale: 0.37}
	}
	for name, w := range map[string]engine.Matrix{
		"e4m3":  {DType: engine.F8E4M3, Data: make([]byte, n*k), Scale: 0.37},
		"e5m2":  {DType: engine.F8E5M2, Data: make([]byte, n*k)},
		"nvfp4": in(engine.NVFP4()),
		"mxfp8": in(engine.MXFP8()),
		"i8":    {DType: engine.I8, Data: make([]byte, n*k), Unrounded: true, Scales: make([]float32, n)},
	} {
		t.Run(name, func(t *testing.T) {
			m := &bench{t: t, ops: o, rng: newRand()}
			defer m.free()
			w.N, w.K = n, k
			for i := range w.Data {
				w.Data[i] = byte(m.rng.IntN(256))
			}
			for i := range w.Scales {
				w.Scales[i] = m.rng.Float32() / 64
			}
			p, to := m.keep(w), m.normal(engine.BF16, (n-from)*k)
			if p.Blocks == nil || p.PieceBytes != byteRow(len(w.Data)/n)+factorRoom {
				t.Fatalf("rows of %d bytes, of %d in the file", p.PieceBytes, len(w.Data)/n)
			}
			o.widen(to.Buf.Dev, p, from, n-from)
			got, want := make([]float32, to.Len()), make([]float32, to.Len())
			if err := o.Download(got, to).Wait(); err != nil {
				t.Fatal(err)
			}
			engine.Widen(want, w.Widened(engine.BF16).Data[2*from*k:], engine.BF16)
			for i, v := range want {
				if math.Float32bits(v) != math.Float32bits(got[i]) && (v == v || got[i] == got[i]) {
					t.Fatalf("row %d, column %d: got %g, want %g", from+i/k, i%k, got[i], v)
				}
			}
		})
	}
}

// TestWidenedBits checks that rows in blocks of random bytes, including infinite and NaN factors, widen to the same
// bf16 bits as in package gguf.
func TestWidenedBits(t *testing.T) {
	o := openOps(t)
	for kind := range blockKinds() {
		t.Run(kind.String(), func(t *testing.T) {
			const n, k, from = 11, 768, 3
			m := &bench{t: t, ops: o, rng: newRand()}
			defer m.free()
			w := m.randomBlocks(kind, n, k, false)
			p, to := m.keep(w), m.normal(engine.BF16, (n-from)*k)
			o.widen(to.Buf.Dev, p, from, n-from)
			got, want := make([]float32, to.Len()), make([]float32, to.Len())
			if err := o.Download(got, to).Wait(); err != nil {
				t.Fatal(err)
			}
			engine.Widen(want, w.Widened(engine.BF16).Data[2*from*k:], engine.BF16)
			nan := 0
			for i, v := range want {
				if v != v && got[i] != got[i] {
					nan++
				} else if math.Float32bits(v) != math.Float32bits(got[i]) {
					t.Fatalf("row %d, column %d: got %g, want %g", from+i/k, i%k, got[i], v)
				}
			}
			if nan > len(want)/2 {
				t.Errorf("%d of %d numbers are NaN: they show nothing", nan, len(want))
			}
		})
	}
}

// TestBlockProducts checks that products with block-quantized weights have the same bits as products with the widened
// weights: with few rows and many, two tiles of which the second is smaller, a full epilogue, adapters, and y as its
// own residual.
func TestBlockProducts(t *testing.T) {
	o := openOps(t)
	o.dev.Multiprocessors, o.widenedTile = 4, 1
	const n = 300
	for kind := range blockKinds() {
		for i, c := range []struct {
			batch, rows, k, ranks int
			dtype                 engine.DType
		}{{1, 3, 256, 5, engine.F32}, {2, 4, 512, 0, engine.BF16}, {3, 3, 256, 5, engine.BF16}, {1, 9, 256, 3, engine.F32}} {
			t.Run(fmt.Sprintf("%s/%d", kind, i), func(t *testing.T) {
				product := func(pack func(engine.Matrix) engine.Matrix) []float32 {
					return results(t, o, func(m *bench) engine.Tensor {
						base := m.keep(pack(m.randomBlocks(kind, n, c.k, true)))
						w := &engine.Weight{Name: "w", Base: base, Bias: m.normal(engine.F32, n)}
						x, y := m.normal(c.dtype, c.batch, c.rows, c.k+1).Slice(2, 0, c.k), m.normal(c.dtype, c.batch, c.rows, n)
						if c.ranks > 0 {
							w.Adapters = []engine.Adapter{
								{Down: m.weight(engine.BF16, c.ranks, c.k), Up: m.weight(engine.F32, n, c.ranks), Scale: 0.5},
							}
						}
						o.Linear(y, x, w, engine.Epilogue{Act: engine.GELUTanh, Residual: y, Gate: m.normal(engine.F32, c.batch, n)})
						return y
					})
				}
				packed := product(func(w engine.Matrix) engine.Matrix { return w })
				want := product(func(w engine.Matrix) engine.Matrix { return w.Widened(engine.BF16) })
				for i, v := range want {
					if math.Float32bits(packed[i]) != math.Float32bits(v) { // a NaN fails too
						t.Fatalf("row %d, feature %d: got %g, want %g", i/n, i%n, packed[i], v)
					}
				}
				if slices.ContainsFunc(want, func(v float32) bool { return v != v }) {
					t.Error("the widened weights give NaN: they show nothing")
				}
			})
		}
	}
}

// TestBlocksKeepTheirBytes checks that block-quantized weights keep the bytes of the file on the device, with rows
// padded to 16 bytes, and that other formats and weights with a factor other than 1 are widened.
func TestBlocksKeepTheirBytes(t *testing.T) {
	o := openOps(t)
	m := &bench{t: t, ops: o, rng: newRand()}
	defer m.free()
	for _, c := range []struct {
		kind    gguf.Type
		k, row  int
		scale   float32
		widened bool
	}{
		{gguf.Q8v0, 96, 112, 0, false},
		{gguf.Q4v0, 96, 64, 1, false},
		{gguf.Q4K, 512, 288, 0, false},
		{gguf.Q5K, 256, 176, 0, false},
		{gguf.Q6K, 256, 224, 0, false},
		{gguf.Q5v1, 96, 192, 0, true},
		{gguf.Q8v0, 96, 192, 2, true},
	} {
		w := m.randomBlocks(c.kind, 10, c.k, true)
		w.Scale = c.scale
		p := m.keep(w)
		if p.DType != engine.BF16 || p.Bytes != 10*c.row || p.PieceRows != 1 || p.PieceBytes != c.row ||
			(p.Blocks == nil) != c.widened {
			t.Errorf("%s with %d inputs and factor %g: %s in %d bytes, want bf16 in %d, widened: %v", c.kind, c.k, c.scale,
				p.DType, p.Bytes, 10*c.row, c.widened)
		}
	}
}

// TestWidenedTileRows checks that a block-quantized weight is widened in tiles of about equal size that are multiples
// of the tensor-core tile and at most widenedTileBytes.
func TestWidenedTileRows(t *testing.T) {
	o := &Ops{widenedTile: widenedTileBytes}
	for _, c := range [][3]int{
		{21504, 3072, 21504}, {3072, 15360, 3072}, // FLUX.1
		{55296, 6144, 9216}, {6144, 24576, 2048}, // FLUX.2
		{7, 32, 7}, {1000, 1 << 19, 256},
	} {
		if got := o.widenedTileRows(c[0], c[1]); got != c[2] {
			t.Errorf("of %d rows of %d are %d widened at a time, want %d", c[0], c[1], got, c[2])
		}
	}
}
