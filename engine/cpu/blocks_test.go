//go:build cgo

package cpu

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
	"patchbay/tests/race"
)

// blockKinds lists the block formats that are kept packed in memory.
func blockKinds() []gguf.Type { return []gguf.Type{gguf.Q8v0, gguf.Q4v0, gguf.Q4K, gguf.Q5K, gguf.Q6K} }

// narrowForms returns a matrix of random codes in every other form that stays as it is.
func narrowForms(n, k int) []engine.Matrix {
	r := rand.New(rand.NewPCG(5, 3))
	code := func(d engine.DType) byte {
		for {
			var v [1]float32
			c := byte(r.Uint32())
			if engine.Widen(v[:], []byte{c}, d); v[0]-v[0] == 0 { // a number
				return c
			}
		}
	}
	fill := func(m engine.Matrix, next func(i int) byte) engine.Matrix {
		for i := range m.Data {
			m.Data[i] = next(i)
		}
		return m
	}
	of := func(d engine.DType) engine.Matrix {
		return engine.Matrix{DType: d, N: n, K: k, Data: make([]byte, n*k)}
	}
	in := func(b *engine.Blocks) engine.Matrix {
		return engine.Matrix{DType: engine.BF16, N: n, K: k, Blocks: b, Data: make([]byte, n*k/b.Elements*b.Bytes)}
	}
	list := []engine.Matrix{
		fill(of(engine.F8E4M3), func(int) byte { return code(engine.F8E4M3) }),
		fill(of(engine.F8E5M2), func(int) byte { return code(engine.F8E5M2) }),
		fill(in(engine.NVFP4()), func(i int) byte {
			if i%18 > 1 {
				return byte(r.Uint32())
			}
			return code(engine.F8E4M3)
		}),
		fill(in(engine.MXFP8()), func(i int) byte {
			switch {
			case i%66 > 1:
				return code(engine.F8E4M3)
			case i%5 == 0:
				return 0
			}
			return byte(40 + r.IntN(160))
		}),
	}
	for _, group := range []int{0, 4, 64, 256} {
		if k%max(group, 1) != 0 {
			continue
		}
		m := fill(of(engine.I8), func(int) byte { return byte(r.Uint32()) })
		m.Rotated, m.Unrounded = group, true
		for range n {
			m.Scales = append(m.Scales, r.Float32()/64)
		}
		list = append(list, m)
	}
	return list
}

// formName names the form of a matrix of blockMatrices.
func formName(m engine.Matrix) string {
	if m.Blocks != nil {
		return m.Blocks.Name
	}
	return fmt.Sprintf("%s in groups of %d", m.DType, m.Rotated)
}

// blockMatrices returns a matrix in every form that is widened when it is multiplied.
func blockMatrices(n, k int) []engine.Matrix {
	list := narrowForms(n, k)
	for _, kind := range blockKinds() {
		list = append(list, anyBlocks(kind, n, k))
	}
	return list
}

// anyBlocks returns a block-quantized matrix of random bytes, with codes and factors that no quantizer writes. Its f16
// factors are finite and not subnormal, of both signs.
func anyBlocks(kind gguf.Type, n, k int) engine.Matrix {
	b := kind.Blocks()
	m := engine.Matrix{DType: engine.BF16, N: n, K: k, Blocks: b, Data: make([]byte, n*k/b.Elements*b.Bytes)}
	r := rand.New(rand.NewPCG(uint64(kind), 3))
	for i := range m.Data {
		m.Data[i] = byte(r.Uint32())
	}
	halves := map[gguf.Type][]int{gguf.Q4K: {0, 2}, gguf.Q5K: {0, 2}, gguf.Q6K: {208}}[kind]
	if halves == nil {
		halves = []int{0}
	}
	for block := range slices.Chunk(m.Data, b.Bytes) {
		for _, at := range halves {
			binary.LittleEndian.PutUint16(block[at:], uint16(r.Uint32N(2)<<15|(4+r.Uint32N(20))<<10|r.Uint32N(1024)))
		}
	}
	return m
}

// TestBlocksWeightByWeight multiplies blocks by unit rows, all at once and one row at a time, and checks that every
// weight is exactly the bf16 number that the file's format defines.
func TestBlocksWeightByWeight(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestEachCallsEveryTaskOnce has the goroutines of all operations")
	}
	const n, k = 67, 512
	for _, m := range blockMatrices(n, k) {
		kind, wide := formName(m), m.Widened(engine.BF16)
		want := make([]float32, n*k)
		engine.Widen(want, wide.Data, engine.BF16)
		unit := make([]float32, k*k)
		for i := range k {
			unit[i*k+i] = 1
		}
		x := tensor(engine.BF16, 1, k, k)
		engine.Narrow(x.Buf.Host, unit, engine.BF16)
		eachLevel(t, 1, func(t *testing.T, o *Ops) {
			p, err := o.Pack(m, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer o.Free(p.Buf)
			if p.Blocks == nil || float64(p.Bytes) > 1.5*float64(len(m.Data)) {
				t.Fatalf("%s: %d bytes became %d, blocks: %v", kind, len(m.Data), p.Bytes, p.Blocks != nil)
			}
			w := &engine.Weight{Name: "blocks", Base: p}
			check := func(how string, got []float32, at, rows int) {
				t.Helper()
				for i, v := range got[:rows*n] {
					if row := at + i/n; v != want[i%n*k+row] {
						t.Fatalf("%s, %s: weight [%d, %d] is %v, want %v", kind, how, i%n, row, v, want[i%n*k+row])
					}
				}
			}
			for _, d := range []engine.DType{engine.BF16, engine.F32} {
				x := x
				if d == engine.F32 {
					x = engine.FromF32(unit, k, k)
				}
				y := tensor(d, 2, k, n)
				o.Linear(y, x, w, engine.Epilogue{})
				check(fmt.Sprintf("all rows of %s", d), values(y), 0, k)
				for i := range k {
					y := y.Slice(0, 0, 1)
					o.Linear(y, x.Slice(0, i, i+1), w, engine.Epilogue{})
					check(fmt.Sprintf("one row of %s", d), values(y), i, 1)
				}
			}
		})
	}
}

// TestBlocksRowAlone checks that a row has the same bits whether it is multiplied alone, among other rows or as an item
// of a batch. K is large enough for several passes, whose ends do not coincide with block borders.
func TestBlocksRowAlone(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestEachCallsEveryTaskOnce has the goroutines of all operations")
	}
	const rows, n, k = 9, 70, 53 * 256
	x := tensor(engine.BF16, 3, rows, k)
	for _, m := range blockMatrices(n, k) {
		kind := formName(m)
		eachLevel(t, 2, func(t *testing.T, o *Ops) {
			p, err := o.Pack(m, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer o.Free(p.Buf)
			w := &engine.Weight{Name: "blocks", Base: p}
			y, alone := tensor(engine.BF16, 1, rows, n), tensor(engine.BF16, 2, rows, n)
			o.Linear(y, x, w, engine.Epilogue{})
			for i := range rows {
				o.Linear(alone.Slice(0, i, i+1), x.Slice(0, i, i+1), w, engine.Epilogue{})
			}
			if !slices.Equal(alone.Buf.Host, y.Buf.Host) {
				t.Errorf("%s: rows alone have other bits than together", kind)
			}
			for items := 1; items <= rows; items++ {
				clear(alone.Buf.Host[:2*items*n])
				part := func(t engine.Tensor) engine.Tensor { return t.Slice(0, 0, items).Split(0, items, 1) }
				o.Linear(part(alone), part(x), w, engine.Epilogue{})
				if !slices.Equal(alone.Buf.Host, y.Buf.Host) {
					t.Fatalf("%s: %d items of one row have other bits than rows", kind, items)
				}
			}
		})
	}
}

// TestNarrowIsNoNumber checks that fp8 codes that are no finite number stay that at every level, and touch only their
// row.
func TestNarrowIsNoNumber(t *testing.T) {
	const n, k = 40, 16
	for d, codes := range map[engine.DType][]byte{
		engine.F8E4M3: {0x7f, 0xff}, engine.F8E5M2: {0x7c, 0xfc, 0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff},
	} {
		eachLevel(t, 1, func(t *testing.T, o *Ops) {
			for _, code := range codes {
				for at := range k {
					m := engine.Matrix{DType: d, N: n, K: k, Data: make([]byte, n*k)}
					m.Data[7*k+at] = code
					p, err := o.Pack(m, 0)
					if err != nil {
						t.Fatal(err)
					}
					y := tensor(engine.F32, 2, 3, n)
					o.Linear(y, engine.FromF32(slices.Repeat([]float32{1}, 3*k), 3, k), &engine.Weight{Base: p}, engine.Epilogue{})
					o.Free(p.Buf)
					var want [1]float32
					engine.Widen(want[:], []byte{code}, d)
					for i, v := range values(y) {
						if row := i % n; row == 7 && v != want[0] && !(v != v && want[0] != want[0]) || row != 7 && v != 0 {
							t.Fatalf("%s: code %#x at %d: element %d is %v", d, code, at, i, v)
						}
					}
				}
			}
		})
	}
}

// TestDenseRowAlone is TestBlocksRowAlone for bf16 weights: rows of several register tiles are multiplied in passes.
func TestDenseRowAlone(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestEachCallsEveryTaskOnce has the goroutines of all operations")
	}
	const rows, n, k = 31, 700, 2*6144 + 2*1024 + 38 // enough sums that one wrong last bit changes some rounding
	x := tensor(engine.BF16, 3, rows, k)
	eachLevel(t, 2, func(t *testing.T, o *Ops) {
		v := noise(n*k, 7)
		m := engine.Matrix{Data: make([]byte, 2*n*k), DType: engine.BF16, N: n, K: k}
		engine.Narrow(m.Data, v, engine.BF16)
		p, err := o.Pack(m, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Free(p.Buf)
		w := &engine.Weight{Name: "dense", Base: p}
		y, alone := tensor(engine.BF16, 1, rows, n), tensor(engine.BF16, 2, rows, n)
		o.Linear(y, x, w, engine.Epilogue{})
		for i := range rows {
			o.Linear(alone.Slice(0, i, i+1), x.Slice(0, i, i+1), w, engine.Epilogue{})
		}
		if !slices.Equal(alone.Buf.Host, y.Buf.Host) {
			t.Error("rows alone have other bits than together")
		}
	})
}
