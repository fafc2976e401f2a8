//go:build cgo

package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
)

// packBlocks packs a block-quantized noise matrix.
func packBlocks(t testing.TB, o *Ops, kind gguf.Type, n, k int) *engine.Weight {
	t.Helper()
	m := engine.Matrix{DType: engine.BF16, N: n, K: k, Blocks: kind.Blocks(), Row: 0}
	m.Data = slices.Repeat(ggufwrite.Quantise(kind, noise(16*k, 7)), n/16)
	p, err := o.Pack(m, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &engine.Weight{Name: "noise", Base: p}
}

// quantisedNoise packs a matrix of random codes, or of noise for d up to F16.
func quantisedNoise(t testing.TB, o *Ops, d engine.DType, n, k int) *engine.Weight {
	t.Helper()
	if d <= engine.F16 {
		return packNoise(t, o, d, n, k, 0)
	}
	m := engine.Matrix{DType: d, N: n, K: k, Data: make([]byte, n*k)}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range m.Data {
		m.Data[i] = byte(r.Uint32())
	}
	if d == engine.I8 {
		m.Scales, m.Rotated = make([]float32, n), 256
		for i := range m.Scales {
			m.Scales[i] = 0.01
		}
	}
	p, err := o.Pack(m, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &engine.Weight{Name: "noise", Base: p}
}

// BenchmarkLinearQuantised compares the weight formats of files in products of FLUX and Qwen-Image, and with few rows,
// where reading the weights dominates. The rate counts 2 M N K operations for every type.
func BenchmarkLinearQuantised(b *testing.B) {
	for _, s := range [][3]int{
		{4096, 3072, 3072}, {1024, 12288, 3072}, {1024, 3072, 12288}, {256, 3072, 3072}, {1, 12288, 6144}, {4, 12288, 6144},
	} {
		for _, d := range [][2]engine.DType{
			{engine.F32, engine.F32},
			{engine.F32, engine.BF16},
			{engine.BF16, engine.BF16},
			{engine.F32, engine.I8},
			{engine.BF16, engine.I8},
			{engine.F32, engine.F8E4M3},
			{engine.BF16, engine.F8E4M3},
			{engine.BF16, engine.F8E5M2},
		} {
			b.Run(fmt.Sprintf("%dx%dx%d/%s-%s", s[0], s[1], s[2], d[0], d[1]), func(b *testing.B) {
				o := benchOps(b)
				w := quantisedNoise(b, o, d[1], s[1], s[2])
				defer o.Free(w.Base.Buf)
				x, y := tensor(d[0], 1, s[0], s[2]), tensor(d[0], 2, s[0], s[1])
				benchRate(b, o, d[0], 2*float64(s[0])*float64(s[1])*float64(s[2]),
					func() { o.Linear(y, x, w, engine.Epilogue{}) })
			})
		}
		for _, form := range []*engine.Blocks{engine.NVFP4(), engine.MXFP8()} {
			b.Run(fmt.Sprintf("%dx%dx%d/bf16-%s", s[0], s[1], s[2], form.Name), func(b *testing.B) {
				o := benchOps(b)
				m := engine.Matrix{DType: engine.BF16, N: s[1], K: s[2], Blocks: form}
				m.Data = slices.Repeat([]byte{0x38}, s[1]*s[2]/form.Elements*form.Bytes)
				p, err := o.Pack(m, 0)
				if err != nil {
					b.Fatal(err)
				}
				defer o.Free(p.Buf)
				x, y, w := tensor(engine.BF16, 1, s[0], s[2]), tensor(engine.BF16, 2, s[0], s[1]), &engine.Weight{Base: p}
				benchRate(b, o, engine.BF16, 2*float64(s[0])*float64(s[1])*float64(s[2]),
					func() { o.Linear(y, x, w, engine.Epilogue{}) })
			})
		}
		for _, kind := range []gguf.Type{gguf.Q8v0, gguf.Q4v0, gguf.Q4K, gguf.Q5K, gguf.Q6K} {
			b.Run(fmt.Sprintf("%dx%dx%d/bf16-%s", s[0], s[1], s[2], kind), func(b *testing.B) {
				o := benchOps(b)
				w := packBlocks(b, o, kind, s[1], s[2])
				defer o.Free(w.Base.Buf)
				x, y := tensor(engine.BF16, 1, s[0], s[2]), tensor(engine.BF16, 2, s[0], s[1])
				benchRate(b, o, engine.BF16, 2*float64(s[0])*float64(s[1])*float64(s[2]),
					func() { o.Linear(y, x, w, engine.Epilogue{}) })
			})
		}
	}
}
