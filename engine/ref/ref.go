// Package ref computes every operation of engine.Ops in plain Go and is the reference for all other implementations.
//
// It is written to be read beside the formulas in engine/ops.go: each operation loads rows into float64, computes there
// and rounds once when it stores, so its error is that of the result's dtype. Weights are row-major without gaps (see
// Pack). Rows are spread over goroutines. It has no cgo: a build without C runs on it. rows.go holds access and
// spreading, product.go the one matrix product that linear.go and image.go share, int8.go its form for weights of 8
// bits, norm.go, elementwise.go, attention.go and quantise.go the rest.
package ref

import (
	"fmt"
	"math"
	"unsafe"

	"patchbay/engine"
)

// Ops is the reference implementation. It has no state: one value serves any number of streams, and every call has run
// when it returns.
type Ops struct{}

// New returns the reference implementation.
func New() *Ops { return &Ops{} }

var _ engine.Ops = (*Ops)(nil)

// layout names the packed form: row-major, no gaps.
const layout = "ref"

// Name returns "ref".
func (*Ops) Name() string { return "ref" }

// Alloc returns zeroed memory of this process, aligned to 64 bytes.
func (*Ops) Alloc(bytes int) (engine.Buf, error) {
	if bytes < 0 || bytes > math.MaxInt-64 {
		return engine.Buf{}, fmt.Errorf("ref alloc: %d bytes is not a size", bytes)
	}
	b := make([]byte, bytes+64)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & 63)
	return engine.Buf{Host: b[skip : skip+bytes : skip+bytes]}, nil
}

// Free does nothing: the garbage collector takes the memory.
func (*Ops) Free(engine.Buf) {}

// Sync implements engine.Ops: calls have run when they return.
func (*Ops) Sync() error { return nil }

// Pack copies the rows of m without their gaps. Weights keep their dtype, except that fp8 becomes bf16, which holds
// every fp8 value, a matrix with a scale, with factors of inputs, or with scales of rows unless it is i8, becomes f32,
// and blocks are widened.
func (*Ops) Pack(m engine.Matrix, c int) (*engine.Packed, error) {
	if err := engine.CheckPack(m, c); err != nil {
		return nil, fmt.Errorf("ref %w", err)
	}
	switch {
	case m.Blocks != nil && (m.Inputs != nil || m.Scale != 0 && m.Scale != 1), m.Scales != nil && m.DType != engine.I8:
		m = m.Widened(engine.F32)
	case m.Blocks != nil:
		m = m.Widened(m.DType)
	case m.Unrounded:
		m = m.Widened(engine.BF16)
	}
	row, scale := m.Row, m.Scale
	if row == 0 {
		row = m.K
	}
	if scale == 0 {
		scale = 1
	}
	stored := m.DType
	switch {
	case scale != 1:
		stored = engine.F32
	case stored == engine.I8:
		return pack8(m), nil
	case stored == engine.F8E4M3 || stored == engine.F8E5M2:
		stored = engine.BF16
	}
	out := make([]byte, m.N*m.K*stored.Size())
	line := make([]float32, m.K)
	for n := range m.N {
		src := m.Data[n*row*m.DType.Size():]
		dst := out[n*m.K*stored.Size() : (n+1)*m.K*stored.Size()]
		if stored == m.DType {
			copy(dst, src)
			continue
		}
		engine.Widen(line, src, m.DType)
		for k := range line {
			line[k] *= scale
		}
		engine.Narrow(dst, line, stored)
	}
	p := &engine.Packed{Buf: engine.Buf{Host: out}, Bytes: len(out), DType: stored, N: m.N, K: m.K, Layout: layout}
	p.PieceRows, p.PieceBytes = 1, m.K*stored.Size()
	return p, nil
}

func (*Ops) Upload(dst engine.Tensor, src []float32) {
	engine.CheckUpload(dst, len(src))
	size := dst.DType.Size()
	engine.Narrow(dst.Buf.Host[dst.Off*size:(dst.Off+len(src))*size], src, dst.DType)
}

// Download implements engine.Ops; the data is there at once.
func (*Ops) Download(dst []float32, src engine.Tensor) engine.Pending {
	engine.CheckDownload(len(dst), src)
	size := src.DType.Size()
	engine.Widen(dst, src.Buf.Host[src.Off*size:(src.Off+len(dst))*size], src.DType)
	return engine.NewPending(nil)
}

func (*Ops) Copy(dst, src engine.Tensor) {
	engine.CheckCopy(dst, src)
	cols, step, from := dst.Dim(-1), dst.Stride(-1), src.Stride(-1)
	spread(rows(dst), cols, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d, s := rowStart(dst, i), rowStart(src, i)
			for c := range cols {
				copyElement(dst, d+c*step, src, s+c*from)
			}
		}
	})
}

// copyElement moves one element, converting between f32 and bf16.
func copyElement(dst engine.Tensor, d int, src engine.Tensor, s int) {
	size := src.DType.Size()
	if dst.DType == src.DType {
		copy(dst.Buf.Host[d*size:(d+1)*size], src.Buf.Host[s*size:(s+1)*size])
		return
	}
	var v [1]float32
	engine.Widen(v[:], src.Buf.Host[s*size:], src.DType)
	engine.Narrow(dst.Buf.Host[d*dst.DType.Size():], v[:], dst.DType)
}

func (*Ops) Fill(dst engine.Tensor, v float32) {
	engine.CheckFill(dst)
	line := make([]float64, dst.Dim(-1))
	for c := range line {
		line[c] = float64(v)
	}
	for i := range rows(dst) {
		store(dst, rowStart(dst, i), line)
	}
}
