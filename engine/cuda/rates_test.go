//go:build cgo && fakegpu

package cuda

import (
	"fmt"
	"testing"
	"time"

	"patchbay/engine"
)

// rate times calls with events of the stream, excluding uploads and first launches, and reports TFLOP/s for flops and
// GB/s for bytes, and the host's time per launch. On the fake device, where times mean nothing, one call with a small
// shape shows that the benchmark runs.
func rate(b *testing.B, o *Ops, flops, bytes float64, call func()) {
	b.Helper()
	call()
	if err := o.Sync(); err != nil {
		b.Fatal(err)
	}
	before := o.dev.Counts().Launches
	first := o.Stamp()
	began := time.Now()
	for range b.N {
		call()
	}
	host := time.Since(began)
	last := o.Stamp()
	if err := o.Sync(); err != nil {
		b.Fatal(err)
	}
	launches := float64(o.dev.Counts().Launches - before)
	took := (last() - first()).Seconds() / float64(b.N)
	b.ReportMetric(took*1e6, "us/call")
	if launches > 0 {
		b.ReportMetric(host.Seconds()*1e6/launches, "host-us/launch")
	}
	if flops > 0 {
		b.ReportMetric(flops/took/1e12, "TFLOP/s")
	} else {
		b.ReportMetric(bytes/took/1e9, "GB/s")
	}
}

// small reduces a size on the fake device.
func small(o *Ops, n int) int {
	if o.dev.Name == "Fake GPU" {
		return max(16, n/96/8*8)
	}
	return n
}

// BenchmarkLinear measures our kernels in bf16 products of the transformers at 1024x1024 pixels, named
// tokens x features x columns.
func BenchmarkLinear(b *testing.B) { linears(b, openOps(b)) }

// BenchmarkLibrary measures the products of BenchmarkLinear by cuBLASLt.
func BenchmarkLibrary(b *testing.B) {
	o := newOps(b, openLibrary(b))
	linears(b, o)
	if o.library == 0 || o.refused > 0 {
		b.Errorf("%d products by cuBLASLt, want some; it disagrees for %d shapes", o.library, o.refused)
	}
}

func linears(b *testing.B, o *Ops) {
	for _, s := range []struct {
		name    string
		m, n, k int
	}{
		{"flux-mlp-up", 4608, 12288, 3072},
		{"flux-mlp-down", 4608, 3072, 12288},
		{"flux-qkv", 4608, 9216, 3072},
		{"flux-single-in", 4608, 21504, 3072},
		{"sd3-qkv", 4429, 4608, 1536},
		{"pixart-mlp-up", 4096, 4608, 1152},
		{"hunyuan-qkv", 4096, 4224, 1408},
	} {
		b.Run(s.name, func(b *testing.B) {
			rows, n, k := small(o, s.m), small(o, s.n), small(o, s.k)
			m := &bench{t: b, ops: o, rng: newRand()}
			x, y := m.normal(engine.BF16, 1, rows, k), m.normal(engine.BF16, 1, rows, n)
			w := &engine.Weight{Base: m.weight(engine.BF16, n, k), Bias: m.normal(engine.F32, n)}
			rate(b, o, 2*float64(rows)*float64(n)*float64(k), 0, func() { o.Linear(y, x, w, engine.Epilogue{}) })
			m.free()
		})
	}
}

// BenchmarkAttention measures our kernels in bf16 attention of the transformers at 1024x1024 pixels.
func BenchmarkAttention(b *testing.B) { attentions(b, openOps(b)) }

// BenchmarkCUDNN measures the shapes of BenchmarkAttention by cuDNN.
func BenchmarkCUDNN(b *testing.B) {
	o := newOps(b, openCUDNN(b))
	attentions(b, o)
	if o.attended == 0 || o.attendedKernels > 0 {
		b.Errorf("%+v, want cuDNN alone", o.chosen)
	}
}

func attentions(b *testing.B, o *Ops) {
	for _, s := range []struct {
		name    string
		l, h, d int
	}{{"flux", 4608, 24, 128}, {"sd3", 4429, 24, 64}, {"pixart", 4096, 16, 72}, {"hunyuan", 4096, 16, 88}} {
		b.Run(s.name, func(b *testing.B) {
			l, h := small(o, s.l), s.h
			if l != s.l {
				h = 1
			}
			m := &bench{t: b, ops: o, rng: newRand()}
			q, k, v, y := m.normal(engine.BF16, 1, l, h, s.d), m.normal(engine.BF16, 1, l, h, s.d),
				m.normal(engine.BF16, 1, l, h, s.d), m.normal(engine.BF16, 1, l, h, s.d)
			rate(b, o, 4*float64(l)*float64(l)*float64(h*s.d), 0, func() { o.Attention(y, q, k, v, engine.AttentionArgs{}) })
			m.free()
		})
	}
}

// BenchmarkMemory measures memory-bound calls, in bytes read and written.
func BenchmarkMemory(b *testing.B) {
	o := openOps(b)
	l, e := small(o, 4608), small(o, 3072)
	m := &bench{t: b, ops: o, rng: newRand()}
	x, y, shift := m.normal(engine.BF16, 1, l, e), m.normal(engine.BF16, 1, l, e), m.normal(engine.F32, 1, e)
	size := float64(x.Bytes())
	for name, c := range map[string]struct {
		bytes float64
		call  func()
	}{
		"copy":  {2 * size, func() { o.Copy(y, x) }},
		"adaln": {2 * size, func() { o.AdaLN(y, x, shift, shift, 1e-6) }},
		"gated": {3 * size, func() { o.GatedAdd(y, y, shift, x, engine.Tensor{}) }},
	} {
		b.Run(fmt.Sprintf("%s-%dx%d", name, l, e), func(b *testing.B) { rate(b, o, 0, c.bytes, c.call) })
	}
	m.free()
}

// free frees all operands.
func (m *bench) free() {
	for _, b := range m.buf {
		m.ops.Free(b)
	}
	m.buf = nil
}
