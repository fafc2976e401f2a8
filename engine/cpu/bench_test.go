//go:build cgo

package cpu

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"patchbay/engine"
)

// benchOps returns the backend of a benchmark. PATCHBAY_CPU selects the level.
func benchOps(b *testing.B) *Ops {
	b.Helper()
	o, err := New(Config{Level: os.Getenv("PATCHBAY_CPU")})
	if err != nil {
		b.Fatal(err)
	}
	return o
}

// cpuSeconds returns the processor time of this process. On a shared machine, only rates by processor time are
// comparable.
func cpuSeconds(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// peakRate returns the peak rate of multiply-adds of type d, in flops per second and thread, with all threads busy: the
// best of some short runs.
func peakRate(b *testing.B, o *Ops, d engine.DType) float64 {
	b.Helper()
	best := 0.0
	for range 9 {
		start := cpuSeconds(b)
		done := make([]float64, o.threads)
		each(o.threads, o.threads, func(_, task int) {
			if d == engine.BF16 {
				done[task] = o.PeakBF16(1_000_000)
			} else {
				done[task] = o.Peak(1_000_000)
			}
		})
		sum := 0.0
		for _, d := range done {
			sum += d
		}
		best = max(best, sum/(cpuSeconds(b)-start))
	}
	return best
}

// benchRate runs f and reports flops per second of wall time over all threads (best run). It also reports flops per
// second of processor time as a share of peakRate, measured in the same benchmark: in the best stretch of at least 5
// ms, and over all runs.
func benchRate(b *testing.B, o *Ops, d engine.DType, flops float64, f func()) {
	b.Helper()
	f()
	peak := peakRate(b, o, d)
	first := cpuSeconds(b)
	mark, since, runs, best, bestCPU := first, 0, 0, 0.0, 0.0
	for b.Loop() {
		began := time.Now()
		f()
		best = max(best, flops/time.Since(began).Seconds())
		runs++
		since++
		if now := cpuSeconds(b); now-mark >= 5e-3 {
			bestCPU = max(bestCPU, float64(since)*flops/(now-mark))
			mark, since = now, 0
		}
	}
	rate := flops * float64(runs) / (cpuSeconds(b) - first)
	peak = max(peak, peakRate(b, o, d))
	b.ReportMetric(best/1e9, "GFLOP/s")
	b.ReportMetric(100*max(rate, bestCPU)/peak, "%peak")
	b.ReportMetric(100*rate/peak, "%peak-mean")
}

// noise returns n pseudo-random values in [-1, 1).
func noise(n int, seed uint32) []float32 {
	v := make([]float32, n)
	for i := range v {
		seed = seed*1664525 + 1013904223
		v[i] = float32(int32(seed)) / (1 << 31)
	}
	return v
}

// tensor returns an activation of type d filled with noise.
func tensor(d engine.DType, seed uint32, shape ...int) engine.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	v := noise(n, seed)
	if d == engine.F32 {
		return engine.FromF32(v, shape...)
	}
	half := make([]byte, 2*n)
	engine.Narrow(half, v, d)
	return engine.NewTensor(engine.Buf{Host: half}, d, shape...)
}

func packNoise(b testing.TB, o *Ops, d engine.DType, n, k, c int) *engine.Weight {
	b.Helper()
	v := noise(n*k, 7)
	m := engine.Matrix{Data: engine.FromF32(v, n*k).Buf.Host, N: n, K: k}
	if d == engine.BF16 {
		m.Data, m.DType = make([]byte, 2*n*k), d
		engine.Narrow(m.Data, v, d)
	}
	p, err := o.Pack(m, c)
	if err != nil {
		b.Fatal(err)
	}
	return &engine.Weight{Name: "noise", Base: p}
}

// benchTypes lists the activation and weight types of the products.
func benchTypes() [][2]engine.DType {
	return [][2]engine.DType{{engine.F32, engine.F32}, {engine.F32, engine.BF16}, {engine.BF16, engine.BF16}}
}

func BenchmarkLinear(b *testing.B) {
	for _, s := range [][3]int{
		{4608, 3072, 3072},
		{1024, 1152, 1152},
		{1024, 12288, 3072},
		{512, 3072, 12288},
		{1, 3072, 3072},
		{4, 3072, 3072},
		{84, 192, 192},
		{84, 768, 192},
	} {
		for _, d := range benchTypes() {
			b.Run(fmt.Sprintf("%dx%dx%d/%s-%s", s[0], s[1], s[2], d[0], d[1]), func(b *testing.B) {
				o := benchOps(b)
				w := packNoise(b, o, d[1], s[1], s[2], 0)
				defer o.Free(w.Base.Buf)
				x, y := tensor(d[0], 1, s[0], s[2]), tensor(d[0], 2, s[0], s[1])
				benchRate(b, o, d[0], 2*float64(s[0])*float64(s[1])*float64(s[2]),
					func() { o.Linear(y, x, w, engine.Epilogue{Act: engine.GELUTanh}) })
				b.ReportMetric(float64(len(w.Base.Buf.Host))/1e9*float64(b.N)/b.Elapsed().Seconds(), "weights-GB/s")
			})
		}
	}
}

func BenchmarkConv(b *testing.B) {
	for _, s := range [][4]int{
		{512, 512, 64, 1},
		{128, 128, 256, 1},
		{256, 512, 64, 1},
		{128, 128, 256, 2},
		{128, 3, 256, 1},
		{16, 512, 32, 1},
	} {
		for _, d := range []engine.DType{engine.F32, engine.BF16} {
			b.Run(fmt.Sprintf("%d-%dch@%d/stride%d/%s", s[0], s[1], s[2], s[3], d), func(b *testing.B) {
				o := benchOps(b)
				w := packNoise(b, o, d, s[1], 9*s[0], s[0])
				defer o.Free(w.Base.Buf)
				n := s[2] / s[3]
				x, y := tensor(d, 1, 1, s[2], s[2], s[0]), tensor(d, 2, 1, n, n, s[1])
				a := engine.ConvArgs{KY: 3, KX: 3, Stride: s[3], Bottom: 1, Right: 1, Top: 2 - s[3], Left: 2 - s[3]}
				benchRate(b, o, d, 18*float64(s[0]*s[1]*n*n), func() { o.Conv2D(y, x, w, a) })
			})
		}
	}
}

func BenchmarkAttention(b *testing.B) {
	for _, s := range [][3]int{{2048, 24, 128}, {1024, 16, 72}, {1024, 16, 64}, {4096, 1, 512}, {84, 6, 32}} {
		for _, d := range []engine.DType{engine.F32, engine.BF16} {
			b.Run(fmt.Sprintf("N%d-H%d-D%d/%s", s[0], s[1], s[2], d), func(b *testing.B) {
				o := benchOps(b)
				l, h, size := s[0], s[1], s[2]
				qkv, out := tensor(d, 1, 1, l, 3, h, size), tensor(d, 2, 1, l, h, size)
				q, k, v := qkv.Index(2, 0), qkv.Index(2, 1), qkv.Index(2, 2)
				benchRate(b, o, d, 4*float64(l)*float64(l)*float64(h*size),
					func() { o.Attention(out, q, k, v, engine.AttentionArgs{}) })
			})
		}
	}
}

// BenchmarkAttentionBiased compares attention without bias and with one row of bias for all queries and heads.
func BenchmarkAttentionBiased(b *testing.B) {
	const l, h, size = 2048, 24, 128
	for _, d := range []engine.DType{engine.F32, engine.BF16} {
		qkv, out := tensor(d, 1, 1, l, 3, h, size), tensor(d, 2, 1, l, h, size)
		row := tensor(engine.F32, 3, 1, 1, l).Broadcast(0, h).Broadcast(1, l)
		for name, bias := range map[string]engine.Tensor{"none": {}, "row": row} {
			b.Run(d.String()+"/"+name, func(b *testing.B) {
				o := benchOps(b)
				benchRate(b, o, d, 4*l*l*h*size, func() {
					o.Attention(out, qkv.Index(2, 0), qkv.Index(2, 1), qkv.Index(2, 2), engine.AttentionArgs{Bias: bias})
				})
			})
		}
	}
}
