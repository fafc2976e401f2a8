//go:build cgo

package cpu

import (
	"math"
	"testing"

	"patchbay/engine"
)

// TestRowsThatAreNotFinite checks that, with 8-bit weights, a NaN or an infinity in a row of x makes all products of
// that row NaN, and no others.
func TestRowsThatAreNotFinite(t *testing.T) {
	eachLevel(t, 2, func(t *testing.T, o *Ops) {
		const n, k, rows = 37, 64, 9
		m := engine.Matrix{DType: engine.I8, N: n, K: k, Data: make([]byte, n*k), Scales: make([]float32, n), Rotated: 16}
		for i := range m.Data {
			m.Data[i] = byte(i*31 + i/7)
		}
		for i := range m.Scales {
			m.Scales[i] = 0.25
		}
		p, err := o.Pack(m, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Free(p.Buf)
		x, y := noise(rows*k, 3), make([]float32, rows*n)
		x[1*k+5], x[4*k+63], x[7*k] = float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))
		o.Linear(engine.FromF32(y, rows, n), engine.FromF32(x, rows, k), &engine.Weight{Base: p}, engine.Epilogue{})
		for i, v := range y {
			if row := i / n; (v != v) != (row == 1 || row == 4 || row == 7) {
				t.Fatalf("row %d, column %d is %v", row, i%n, v)
			}
		}
	})
}
