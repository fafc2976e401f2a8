//go:build cgo && fakegpu

package cuda

import (
	"fmt"
	"testing"

	"patchbay/engine"
)

// TestEveryHead compares the tensor-core kernels with ref on lengths that end inside a tile of queries and of keys. It
// compares the log-sum-exp too, because only that shows one key too many.
func TestEveryHead(t *testing.T) {
	o := openOps(t)
	for _, c := range []struct {
		kernel       kernel
		b, h, lq, lk int
		d            int
		causal, bias bool
		lens         []int
		scale        float32
	}{
		{kernel: kAttend32, b: 2, h: 2, lq: 130, lk: 65, d: 32},
		{kernel: kAttend64, b: 1, h: 2, lq: 129, lk: 127, d: 64},
		{kernel: kAttend64, b: 1, h: 1, lq: 40, lk: 64, d: 40},
		{kernel: kAttend80, b: 1, h: 2, lq: 70, lk: 150, d: 72},
		{kernel: kAttend96, b: 1, h: 2, lq: 70, lk: 193, d: 88},
		{kernel: kAttend128, b: 1, h: 2, lq: 140, lk: 200, d: 128},
		{kernel: kAttend128, b: 1, h: 1, lq: 20, lk: 330, d: 104, scale: 3},
		{kernel: kAttendMasked64, b: 3, h: 2, lq: 130, lk: 130, d: 64, causal: true, lens: []int{130, 0, 65}},
		{kernel: kAttendMasked64, b: 1, h: 3, lq: 70, lk: 70, d: 64, bias: true, scale: 1},
		{kernel: kAttendMasked128, b: 2, h: 1, lq: 33, lk: 129, d: 80, bias: true, lens: []int{129, 64}},
		{kernel: kAttendMasked128, b: 70, h: 1, lq: 2, lk: 9, d: 72, lens: make([]int, 70)},
		{kernel: kAttendAny, b: 1, h: 1, lq: 33, lk: 70, d: 63},
		{kernel: kAttendWide, b: 1, h: 1, lq: 40, lk: 70, d: 512, causal: false, bias: true},
		{kernel: kSoftmax, b: 1, h: 1, lq: 70, lk: 70, d: 512},
		{kernel: kSoftmax, b: 3, h: 2, lq: 9, lk: 136, d: 136, lens: []int{136, 0, 77}},
		{kernel: kSoftmax, b: 1, h: 1, lq: 3, lk: 600, d: 160, scale: 2},
	} {
		name := fmt.Sprintf("%s/B%d H%d Lq%d Lk%d D%d", kernels[c.kernel].name, c.b, c.h, c.lq, c.lk, c.d)
		for i := range c.lens {
			if c.b == 70 {
				c.lens[i] = i % 10
			}
		}
		for _, part := range []string{"o", "lse"} {
			t.Run(name+"/"+part, func(t *testing.T) {
				rel := 1.0 / 64
				if part == "lse" {
					rel = 1e-5 // one key too many among 200 adds 5e-3
				}
				compare(t, o, rel, func(m *bench) engine.Tensor {
					qkv := m.normal(engine.BF16, c.b, c.lq, 2, c.h, c.d)
					q, kv, out := qkv.Index(2, 1), m.normal(engine.BF16, c.b, c.lk, 2, c.h, c.d),
						m.normal(engine.BF16, c.b, c.lq, c.h, c.d)
					a := engine.AttentionArgs{
						Causal: c.causal, Scale: c.scale, KeyLen: c.lens,
						LSE: m.normal(engine.F32, c.b, c.h, c.lq),
					}
					if c.bias {
						a.Bias = m.normal(engine.F32, c.h, c.lq, c.lk)
					}
					k, v := kv.Index(2, 0), kv.Index(2, 1)
					got, _ := attendKernel(out, q, k, v, a)
					if asProducts(out, q, k, v, a) {
						got = kSoftmax
					}
					if got != c.kernel && m.ops == engine.Ops(o) {
						t.Fatalf("kernel %s is chosen", kernels[got].name)
					}
					m.ops.Attention(out, q, k, v, a)
					if part == "lse" {
						return a.LSE
					}
					return out
				})
			})
		}
	}
}
