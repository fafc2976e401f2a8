//go:build cgo && fakegpu

package cuda

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda/dnn"
	"patchbay/engine/cuda/library"
	"patchbay/tests/fakegpu"
)

// openCUDNN opens device 0 with the cuDNN of the fake device, or with that of PATCHBAY_TEST_CUDNN on a GPU.
func openCUDNN(t testing.TB, changes ...fakegpu.Change) *Device {
	t.Helper()
	folder := cmp.Or(os.Getenv("PATCHBAY_TEST_CUDNN"), driverFolder(t))
	if changes != nil {
		folder = fakegpu.Library(t, changes...)
	}
	d, err := Open(driverFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	_, found, err := d.Use(&library.Search{Folders: folder})
	if list, _ := d.Devices(); found.Path == "" && len(list) > 0 && list[0].Name != "Fake GPU" {
		t.Skipf("NOT RUN: no cuDNN (PATCHBAY_TEST_CUDNN names its folder): %v", found.Err)
	}
	if err != nil || found.Path == "" {
		t.Fatalf("cuDNN: %+v, %v", found, err)
	}
	dev, err := d.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// attended is one attention call, whose operands all have different strides.
type attended struct {
	b, h, lq, lk, d int
	scale           float32
	sums            bool
	lens            []int
}

func (c *attended) tensors(m *bench) (out, q, k, v engine.Tensor, a engine.AttentionArgs) {
	q = m.normal(engine.BF16, c.b, c.lq, 2, c.h, c.d).Index(2, 1)
	k = m.normal(engine.BF16, c.b, c.lk, 2, c.h, c.d).Index(2, 0)
	v = m.normal(engine.BF16, c.b, c.lk, c.h, c.d+16).Slice(3, 0, c.d)
	out = m.normal(engine.BF16, c.b, c.lq, c.h, c.d+8).Slice(3, 0, c.d)
	a = engine.AttentionArgs{Scale: c.scale, KeyLen: c.lens}
	if c.sums {
		a.LSE = m.normal(engine.F32, c.b, c.h, c.lq+5).Slice(2, 3, 3+c.lq)
	}
	return out, q, k, v, a
}

// dense returns a copy without gaps.
func (m *bench) dense(t engine.Tensor) engine.Tensor {
	out := m.normal(t.DType, t.Shape()...)
	m.ops.Copy(out, t)
	return out
}

// TestAttentionByCUDNN compares attention by cuDNN with ref for every head size, with different strides for all
// operands, with the log-sum-exp and without. Masks, and shapes that the library has no engine for, must go to our
// kernels.
func TestAttentionByCUDNN(t *testing.T) {
	dev := openCUDNN(t)
	o := newOps(t, dev)
	for i, c := range []struct {
		attended
		want chosen
	}{
		{attended{b: 2, h: 3, lq: 70, lk: 33, d: 64}, chosen{attended: 1}},
		{attended{b: 1, h: 2, lq: 9, lk: 150, d: 72, scale: 2}, chosen{attended: 1}},
		{attended{b: 2, h: 2, lq: 40, lk: 40, d: 128, sums: true}, chosen{attended: 1}},
		{attended{b: 70, h: 1, lq: 3, lk: 9, d: 32, sums: true}, chosen{attended: 1}},
		{attended{b: 1, h: 2, lq: 20, lk: 20, d: 24}, chosen{attendedKernels: 1, unplanned: 1}},
		{attended{b: 1, h: 2, lq: 61, lk: 20, d: 64}, chosen{attendedKernels: 1, unplanned: 1}}, // a large workspace
		{attended{b: 2, h: 2, lq: 20, lk: 20, d: 64, lens: []int{20, 7}}, chosen{attendedKernels: 1}},
		{attended{b: 1, h: 2, lq: 20, lk: 20, d: 64, scale: -1}, chosen{attendedKernels: 1}},
	} {
		if dev.Name != "Fake GPU" && c.want.unplanned > 0 {
			continue // the real library has an engine
		}
		for _, sums := range []bool{false, true} {
			if sums && !c.sums {
				continue
			}
			t.Run(fmt.Sprintf("%d sums %t", i, sums), func(t *testing.T) {
				if sums {
					c.want.unplanned, c.want.attended = 0, c.want.attended+1 // the shape was planned before
				}
				rel := 1.0 / 64
				if sums {
					rel = 1e-5
				}
				compare(t, o, rel, func(m *bench) engine.Tensor {
					out, q, k, v, a := c.tensors(m)
					m.ops.Attention(out, q, k, v, a)
					if sums {
						return m.dense(a.LSE)
					}
					return m.dense(out)
				})
				if o.chosen != c.want {
					t.Errorf("counted %+v, want %+v", o.chosen, c.want)
				}
			})
		}
		o.chosen = chosen{}
	}
}

// TestAttentionByCUDNNReserved checks that, after a recording pass and Reserve, the first step makes no plan, allocates
// no device memory and does not wait, and that a step allocates nothing on the host.
func TestAttentionByCUDNNReserved(t *testing.T) {
	dev := openCUDNN(t)
	loader, o := newOps(t, dev), newOps(t, dev)
	m := &bench{t: t, ops: loader, rng: newRand()}
	c := attended{b: 1, h: 2, lq: 24, lk: 40, d: 64, sums: true}
	out, q, k, v, a := c.tensors(m)
	step := func(o engine.Ops) {
		o.Attention(out, q, k, v, a)
		o.Attention(out, q, k, v, engine.AttentionArgs{})
	}
	calls := engine.NewRecorder()
	step(calls)
	if err := loader.Sync(); err != nil {
		t.Fatal(err)
	}
	want := o.Scratch(calls)
	if err := o.Reserve(calls); err != nil {
		t.Fatal(err)
	}
	if int64(o.mem.bytes) != want || want < dnn.Space {
		t.Errorf("%d bytes of scratch memory, %d promised, %d for the library", o.mem.bytes, want, dnn.Space)
	}
	before, plans := dev.Counts(), len(o.sdpa.plans)
	step(o)
	after := dev.Counts()
	if o.attended != 2 || plans != 2 || len(o.sdpa.plans) != 2 || after.Allocations != before.Allocations ||
		after.Waits != before.Waits {
		t.Errorf("%d of 2 by the library, %d plans before and %d after, %d allocations, %d waits", o.attended, plans,
			len(o.sdpa.plans), after.Allocations-before.Allocations, after.Waits-before.Waits)
	}
	if n := testing.AllocsPerRun(3, func() { step(o) }); n != 0 {
		t.Errorf("a step costs the host %g allocations, want 0", n)
	}
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	m.free()
}

// TestCUDNNOnAFullCard checks that to compare cuDNN with our kernel takes little more memory than the operands, so that
// a card that is nearly full does not lose it.
func TestCUDNNOnAFullCard(t *testing.T) {
	dev := openCUDNN(t)
	if dev.Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake device's memory can be set")
	}
	o := newOps(t, dev)
	m := &bench{t: t, ops: o, rng: newRand()}
	c := attended{b: 1, h: 16, lq: 1024, lk: 16, d: 64}
	out, q, k, v, a := c.tensors(m)
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	free, total, err := dev.Memory()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKEGPU_MEMORY", fmt.Sprint(total-free+14<<20)) // copies of all results in f32 took 19 MB
	o.Attention(out, q, k, v, a)
	if want := (chosen{attended: 1}); o.chosen != want {
		t.Errorf("counted %+v, want %+v", o.chosen, want)
	}
	m.free()
}

// TestCUDNNBesideACapture checks that a stream that first uses cuDNN, which then waits for the device, leaves the
// capture of another stream alone.
func TestCUDNNBesideACapture(t *testing.T) {
	dev := openCUDNN(t)
	o, other := newOps(t, dev), newOps(t, dev)
	m := &bench{t: t, ops: other, rng: newRand()}
	c := attended{b: 1, h: 2, lq: 20, lk: 20, d: 64}
	out, q, k, v, a := c.tensors(m)
	s := newStep(t, o, 4)
	good, used := s.f, make(chan struct{})
	s.f = func(ops engine.Ops, fixed []engine.Tensor) error {
		if err := good(ops, fixed); err != nil || o.graphs.within == nil {
			return err
		}
		go func() {
			defer close(used)
			other.Attention(out, q, k, v, a)
		}()
		for range 1000 { // it may go on until it waits for the capture
			runtime.Gosched()
		}
		return nil
	}
	for i := range 4 {
		s.run(t, o, "a", i)
	}
	<-used
	if o.graphs.count.refused > 0 || o.graphs.count.launched != 3 || other.chosen.attended != 1 {
		t.Errorf("graphs %+v, attention beside them %+v: want 3 launched, 1 by cuDNN", o.graphs.count, other.chosen)
	}
	s.m.free()
	m.free()
}

// TestAttentionByCUDNNFixed checks that cuDNN is not used after Fix, when a row must have the same bits whatever other
// rows the call has: the library's order of summation is unknown.
func TestAttentionByCUDNNFixed(t *testing.T) {
	o := newOps(t, openCUDNN(t))
	o.Fix(true)
	m := &bench{t: t, ops: o, rng: newRand()}
	x, y := m.normal(engine.BF16, 1, 16, 1, 64), m.normal(engine.BF16, 1, 16, 1, 64)
	calls := engine.NewRecorder()
	calls.Attention(y, x, x, x, engine.AttentionArgs{})
	if err := o.Reserve(calls); err != nil {
		t.Fatal(err)
	}
	o.Attention(y, x, x, x, engine.AttentionArgs{})
	if want := (chosen{attendedKernels: 1}); o.chosen != want || len(o.sdpa.plans) > 0 {
		t.Errorf("counted %+v, want %+v, and %d plans", o.chosen, want, len(o.sdpa.plans))
	}
	m.free()
}

// TestCUDNNThatIsWrong checks that a library whose results or log-sum-exp differ from ours is not used, so attention
// stays right. A wrong log-sum-exp must do no harm where none is requested.
func TestCUDNNThatIsWrong(t *testing.T) {
	if openDevice(t).Name != "Fake GPU" {
		t.Skip("NOT RUN: no library at hand is wrong")
	}
	for name, c := range map[string]struct {
		change fakegpu.Change
		sums   bool
		want   chosen
	}{
		"scale": {
			fakegpu.Change{Old: "p[j] = s * c.scale;", New: "p[j] = s * c.scale * 1.1f;"}, false, chosen{
				attendedKernels:     2,
				attentionMismatches: 1,
			},
		},
		"a key too few": {
			fakegpu.Change{
				Old: "keys = a.k.dims[2], n = a.q.dims[3];\n  std::vector",
				New: "keys = a.k.dims[2] - 1, n = a.q.dims[3];\n  std::vector",
			}, false, chosen{attendedKernels: 2, attentionMismatches: 1},
		},
		"the sum in bits": {
			fakegpu.Change{Old: "most + std::log(sum)", New: "(most + std::log(sum)) * 1.442695f"},
			true,
			chosen{attendedKernels: 2, attentionMismatches: 1},
		},
		"no NVRTC": {
			fakegpu.Change{
				Old: "  std::string why = wrong(d);\n",
				New: "  std::string why = d->kind == PB_DNN_PLAN ? \"Unable to load NVRTC\" : wrong(d);\n",
			}, false, chosen{attendedKernels: 2, unplanned: 1},
		},
		"sums nobody sees": {fakegpu.Change{Old: "most + std::log(sum)", New: "0"}, false, chosen{attended: 2}},
		"no number": {
			fakegpu.Change{Old: "narrow(out[i] / sum)", New: "narrow(i == 5 ? NAN : out[i] / sum)"},
			false,
			chosen{attendedKernels: 2, attentionMismatches: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.change.File = "libcudnn.cc"
			o := newOps(t, openCUDNN(t, c.change))
			for range 2 {
				compare(t, o, 1.0/64, func(m *bench) engine.Tensor {
					call := attended{b: 1, h: 2, lq: 30, lk: 50, d: 64, sums: c.sums}
					out, q, k, v, a := call.tensors(m)
					m.ops.Attention(out, q, k, v, a)
					return m.dense(out)
				})
			}
			if o.chosen != c.want {
				t.Errorf("counted %+v, want %+v", o.chosen, c.want)
			}
		})
	}
}

// TestAttentionByCUDNNManyThreads checks concurrent attention on the streams of several goroutines, each with a handle
// of its own.
func TestAttentionByCUDNNManyThreads(t *testing.T) {
	dev := openCUDNN(t)
	var wg sync.WaitGroup
	for range 4 {
		o := newOps(t, dev)
		wg.Go(func() {
			m := &bench{t: t, ops: o, rng: newRand()}
			q, out := m.normal(engine.BF16, 1, 16, 1, 32), m.normal(engine.BF16, 1, 16, 1, 32)
			for i := range 3 {
				o.Fill(q, float32(i))
				o.Attention(out, q, q, q, engine.AttentionArgs{})
				wantAll(t, o, engine.NewTensor(out.Buf, engine.BF16, 16*32), float32(i))
			}
			m.free()
			if want := (chosen{attended: 3}); o.chosen != want {
				t.Errorf("counted %+v, want %+v", o.chosen, want)
			}
		})
	}
	wg.Wait()
}
