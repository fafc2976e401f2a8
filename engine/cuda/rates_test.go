//go:build cgo && fakegpu

package cuda

import (
	"fmt"
	"math"
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

// tiledPeriod is how many random numbers the operands of benchmarks repeat: to draw them all would take a minute.
const tiledPeriod = 8191

// tiled returns a contiguous bf16 tensor of random numbers that repeat. It is filled on the device.
func (m *bench) tiled(o *Ops, shape ...int) engine.Tensor {
	m.t.Helper()
	t := engine.NewTensor(engine.Buf{}, engine.BF16, shape...)
	buf, err := o.Alloc(t.Bytes())
	if err != nil {
		m.t.Fatal(err)
	}
	m.buf = append(m.buf, buf)
	o.noise(buf.Dev, t.Len(), 0)
	return engine.NewTensor(buf, engine.BF16, shape...)
}

// tiledWeight packs a bf16 matrix of random numbers that repeat.
func (m *bench) tiledWeight(n, k int) *engine.Packed {
	m.t.Helper()
	data := make([]byte, n*k*engine.BF16.Size())
	have := min(n*k, tiledPeriod) * engine.BF16.Size()
	engine.Narrow(data[:have], m.numbers(min(n*k, tiledPeriod), 1/math.Sqrt(float64(k))), engine.BF16)
	for ; have < len(data); have *= 2 {
		copy(data[have:], data[:have])
	}
	p, err := m.ops.Pack(engine.Matrix{Data: data, DType: engine.BF16, N: n, K: k}, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.buf = append(m.buf, p.Buf)
	return p
}

// TestLoad opens a device and says how long the driver took to load the kernels, or to compile them.
func TestLoad(t *testing.T) {
	began := time.Now()
	dev := openDevice(t)
	t.Logf("the driver and the kernels of %s: %.2f s; %v", dev.Name, time.Since(began).Seconds(), dev.Loaded())
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
			x, y := m.tiled(o, 1, rows, k), m.tiled(o, 1, rows, n)
			w := &engine.Weight{Base: m.tiledWeight(n, k), Bias: m.normal(engine.F32, n)}
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
			q, k, v, y := m.tiled(o, 1, l, h, s.d), m.tiled(o, 1, l, h, s.d), m.tiled(o, 1, l, h, s.d), m.tiled(o, 1, l, h, s.d)
			rate(b, o, 4*float64(l)*float64(l)*float64(h*s.d), 0, func() { o.Attention(y, q, k, v, engine.AttentionArgs{}) })
			m.free()
		})
	}
}

// BenchmarkMemory measures memory-bound calls, in bytes read and written. They take turns on operands of 283 MB, so
// that none is still in a cache.
func BenchmarkMemory(b *testing.B) {
	o := openOps(b)
	l, e := small(o, 4608), small(o, 3072)
	m := &bench{t: b, ops: o, rng: newRand()}
	var x, y [5]engine.Tensor
	for i := range x {
		x[i], y[i] = m.tiled(o, 1, l, e), m.tiled(o, 1, l, e)
	}
	shift, size := m.normal(engine.F32, 1, e), float64(x[0].Bytes())
	for name, c := range map[string]struct {
		bytes float64
		call  func(y, x engine.Tensor)
	}{
		"copy":  {2 * size, func(y, x engine.Tensor) { o.Copy(y, x) }},
		"adaln": {2 * size, func(y, x engine.Tensor) { o.AdaLN(y, x, shift, shift, 1e-6) }},
		"gated": {3 * size, func(y, x engine.Tensor) { o.GatedAdd(y, y, shift, x, engine.Tensor{}) }},
	} {
		b.Run(fmt.Sprintf("%s-%dx%d", name, l, e), func(b *testing.B) {
			turn := 0
			rate(b, o, 0, c.bytes, func() {
				c.call(y[turn], x[turn])
				turn = (turn + 1) % len(x)
			})
		})
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
