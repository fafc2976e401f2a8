package ref

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"patchbay/engine"
)

// rows returns the number of rows of t: everything but the last dimension.
func rows(t engine.Tensor) int {
	n := 1
	for i := range t.Dims() - 1 {
		n *= t.Dim(i)
	}
	return n
}

// rowStart returns the element offset of row i of t, rows counted row-major over all dimensions but the last.
func rowStart(t engine.Tensor, i int) int { return t.Start(i, t.Dims()-1) }

// load widens len(dst) neighboring elements of t, starting at element offset off.
func load(dst []float64, t engine.Tensor, off int) { widen(dst, t.Buf.Host, t.DType, off) }

// widen is load for raw memory.
func widen(dst []float64, mem []byte, d engine.DType, off int) {
	mem = mem[off*d.Size() : (off+len(dst))*d.Size()]
	switch d {
	case engine.F32:
		for i := range dst {
			dst[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(mem[4*i:])))
		}
	case engine.BF16:
		for i := range dst {
			dst[i] = float64(engine.F32FromBF16(binary.LittleEndian.Uint16(mem[2*i:])))
		}
	case engine.F64:
		for i := range dst {
			dst[i] = math.Float64frombits(binary.LittleEndian.Uint64(mem[8*i:]))
		}
	default:
		line := make([]float32, len(dst))
		engine.Widen(line, mem, d)
		for i, v := range line {
			dst[i] = float64(v)
		}
	}
}

// store rounds src to neighboring elements of t (f32, bf16 or f64), starting at element offset off.
func store(t engine.Tensor, off int, src []float64) {
	mem := t.Buf.Host[off*t.DType.Size() : (off+len(src))*t.DType.Size()]
	switch t.DType {
	case engine.F32:
		for i, v := range src {
			binary.LittleEndian.PutUint32(mem[4*i:], math.Float32bits(float32(v)))
		}
	case engine.BF16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(mem[2*i:], engine.BF16FromF32(float32(v)))
		}
	default:
		for i, v := range src {
			binary.LittleEndian.PutUint64(mem[8*i:], math.Float64bits(v))
		}
	}
}

// vector widens an optional [n] operand; absent ones are filled with v.
func vector(t engine.Tensor, n int, v float64) []float64 {
	out := make([]float64, n)
	if t.IsZero() {
		for i := range out {
			out[i] = v
		}
		return out
	}
	load(out, t, t.Off)
	return out
}

// modulation widens an optional [G, E] operand and returns one row for each of batch items, items of one group sharing
// theirs; absent ones are filled with v.
func modulation(t engine.Tensor, batch, e int, v float64) [][]float64 {
	out := make([][]float64, batch)
	if t.IsZero() {
		row := vector(t, e, v)
		for b := range out {
			out[b] = row
		}
		return out
	}
	for b := range out {
		if each := batch / t.Dim(0); b%each == 0 {
			out[b] = vector(t.Index(0, b/each), e, v)
		} else {
			out[b] = out[b-1]
		}
	}
	return out
}

// spread calls f for pieces [lo, hi) of n items on all processors; cost is the work of one item in elements. f must
// touch only its own items.
func spread(n, cost int, f func(lo, hi int)) {
	const least = 1 << 14 // elements worth a goroutine
	grain := max(1, least/max(1, cost))
	workers := min(runtime.GOMAXPROCS(0), (n+grain-1)/grain)
	if workers <= 1 {
		if n > 0 {
			f(0, n)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				lo := int(next.Add(int64(grain))) - grain
				if lo >= n {
					return
				}
				f(lo, min(lo+grain, n))
			}
		})
	}
	wg.Wait()
}
