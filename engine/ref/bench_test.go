package ref_test

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

func BenchmarkLinear(b *testing.B) {
	const rows, n, k = 256, 512, 512
	raw := make([]byte, 4*n*k)
	engine.Narrow(raw, data(1, n*k), engine.F32)
	p, err := ref.New().Pack(engine.Matrix{Data: raw, DType: engine.F32, N: n, K: k}, 0)
	if err != nil {
		b.Fatal(err)
	}
	x, y := engine.FromF32(data(2, rows*k), rows, k), engine.FromF32(make([]float32, rows*n), rows, n)
	for b.Loop() {
		ref.New().Linear(y, x, &engine.Weight{Base: p}, engine.Epilogue{})
	}
	b.ReportMetric(2*rows*n*k*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

func BenchmarkAttention(b *testing.B) {
	const l, h, d = 256, 4, 64
	q, o := engine.FromF32(data(1, l*h*d), 1, l, h, d), engine.FromF32(make([]float32, l*h*d), 1, l, h, d)
	for b.Loop() {
		ref.New().Attention(o, q, q, q, engine.AttentionArgs{})
	}
	b.ReportMetric(4*l*l*h*d*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}
