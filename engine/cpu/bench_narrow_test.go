//go:build cgo

package cpu

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"patchbay/engine"
)

// BenchmarkNarrowBesideBF16 multiplies weights in narrow forms and the same in bf16 in turn, on one goroutine, and
// reports the median of the ratios of their rates by processor time.
func BenchmarkNarrowBesideBF16(b *testing.B) {
	const n, k, rounds = 12288, 3072, 9
	o, err := New(Config{Level: os.Getenv("PATCHBAY_CPU"), Threads: 1})
	if err != nil {
		b.Fatal(err)
	}
	pack := func(m engine.Matrix) *engine.Weight {
		p, err := o.Pack(m, 0)
		if err != nil {
			b.Fatal(err)
		}
		return &engine.Weight{Name: "noise", Base: p}
	}
	base := packNoise(b, o, engine.BF16, n, k, 0)
	for _, m := range narrowForms(n, k) {
		if m.Rotated > 0 && m.Rotated < 256 {
			continue
		}
		w := pack(m)
		for _, d := range []engine.DType{engine.BF16, engine.F32} {
			for _, rows := range []int{1, 256, 1024} {
				b.Run(fmt.Sprintf("%d/%s-%s", rows, d, formName(m)), func(b *testing.B) {
					x, y := tensor(d, 1, rows, k), tensor(d, 2, rows, n)
					took := func(w *engine.Weight) float64 {
						from, runs := cpuSeconds(b), 0
						for runs < 1 || cpuSeconds(b)-from < 0.02 {
							o.Linear(y, x, w, engine.Epilogue{})
							runs++
						}
						return (cpuSeconds(b) - from) / float64(runs)
					}
					took(w)
					var ratios []float64
					for b.Loop() {
						for range rounds {
							ratios = append(ratios, took(base)/took(w))
						}
					}
					slices.Sort(ratios)
					b.ReportMetric(ratios[len(ratios)/2], "of-bf16")
				})
			}
		}
		o.Free(w.Base.Buf)
	}
}
