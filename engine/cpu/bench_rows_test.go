//go:build cgo

package cpu

import (
	"testing"

	"patchbay/engine"
)

// BenchmarkRows reports the memory traffic of the row-wise operations, counting elements read and written.
func BenchmarkRows(b *testing.B) {
	for _, d := range []engine.DType{engine.F32, engine.BF16} {
		b.Run(d.String(), func(b *testing.B) { benchRows(b, d) })
	}
}

func benchRows(b *testing.B, d engine.DType) {
	const l, e = 4096, 1152
	o, size := benchOps(b), d.Size()
	x, y := tensor(d, 1, 1, l, e), tensor(d, 2, 1, l, e)
	mod := engine.FromF32(noise(e, 2), 1, e)
	pic, picOut := tensor(d, 3, 1, 128, 128, 256), tensor(d, 4, 1, 128, 128, 256)
	stats := engine.NewTensor(engine.Buf{Host: make([]byte, 16*32)}, engine.F64, 1, 32, 2)
	vec := engine.FromF32(noise(256, 4), 256)
	o.GroupNormStats(stats, pic, 32)
	heads := func(t engine.Tensor) engine.Tensor { return t.Split(2, 16, 72) }
	table := engine.FromF32(noise(l*36, 5), l, 36)
	for _, c := range []struct {
		name     string
		elements int
		f        func()
	}{
		{"AdaLN", 2 * l * e, func() { o.AdaLN(y, x, mod, mod, 1e-6) }},
		{"GatedAdd", 3 * l * e, func() { o.GatedAdd(y, y, mod, x, engine.Tensor{}) }},
		{"Add", 3 * l * e, func() { o.Add(y, y, x) }},
		{"SiLU", 2 * l * e, func() { o.Activate(y, x, engine.SiLU) }},
		{"GELUErf", 2 * l * e, func() { o.Activate(y, x, engine.GELUErf) }},
		{"QKNormRoPE", 4 * l * e, func() {
			o.QKNormRoPE(heads(y), heads(y), engine.Tensor{}, heads(x), heads(x), engine.Tensor{},
				engine.QKNorm{Kind: engine.RMSNorm, Eps: 1e-6},
				engine.RoPE{Cos: table, Sin: table})
		}},
		{"GroupNormStats", 128 * 128 * 256, func() { o.GroupNormStats(stats, pic, 32) }},
		{
			"GroupNormApplySiLU", 2 * 128 * 128 * 256,
			func() { o.GroupNormApply(picOut, pic, stats, vec, vec, 128*128*8, 1e-6, engine.SiLU) },
		},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(size * c.elements))
			for b.Loop() {
				c.f()
			}
		})
	}
}
