//go:build cgo && fakegpu

package cuda

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
)

// vector allocates an f32 tensor of n elements.
func vector(t testing.TB, o *Ops, n int) engine.Tensor {
	t.Helper()
	buf, err := o.Alloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	return engine.NewTensor(buf, engine.F32, n)
}

// filled returns n copies of v.
func filled(n int, v float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// wantAll fails unless x holds v everywhere.
func wantAll(t testing.TB, o *Ops, x engine.Tensor, v float32) {
	t.Helper()
	got := make([]float32, x.Len())
	if err := o.Download(got, x).Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != v {
			t.Fatalf("element %d: got %g, want %g", i, got[i], v)
		}
	}
}

func TestUploadsInARow(t *testing.T) {
	o := openOps(t)
	const n = 100
	var list []engine.Tensor
	for range 6 {
		list = append(list, vector(t, o, n))
	}
	var pending []engine.Pending
	got := make([][]float32, len(list))
	for i, x := range list {
		o.Upload(x, filled(n, float32(i+1)))
		got[i] = make([]float32, n)
		pending = append(pending, o.Download(got[i], x))
	}
	for i := len(list) - 1; i >= 0; i-- {
		if err := pending[i].Wait(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range list {
		if got[i][0] != float32(i+1) || got[i][n-1] != float32(i+1) {
			t.Errorf("tensor %d: got %g .. %g, want %d", i, got[i][0], got[i][n-1], i+1)
		}
		o.Free(list[i].Buf)
	}
}

// TestDownloadThatFails checks that the next download reuses the pinned memory of one whose Wait failed.
func TestDownloadThatFails(t *testing.T) {
	o := openOps(t)
	x := vector(t, o, 64)
	if err := o.BeginCapture(); err != nil {
		t.Fatal(err)
	}
	got := o.Download(make([]float32, 64), x)
	for range 2 {
		if err := got.Wait(); err == nil {
			t.Error("a download was waited for that is being captured")
		}
	}
	if _, err := o.EndCapture(); err == nil {
		t.Error("a wait did not end the capture")
	}
	before := o.dev.Counts().Allocations
	wantAll(t, o, x, 0)
	if n := o.dev.Counts().Allocations - before; n != 0 {
		t.Errorf("the next download took memory %d times, want 0", n)
	}
	o.Free(x.Buf)
}

func TestLongUploadsPassInPieces(t *testing.T) {
	o := openOps(t)
	n := driver.SlotBytes/4*2 + 1000
	x := vector(t, o, n)
	src := make([]float32, n)
	for i := range src {
		src[i] = float32(i)
	}
	o.Upload(x, src)
	got := make([]float32, n)
	if err := o.Download(got, x).Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != src[i] {
			t.Fatalf("element %d: got %g", i, got[i])
		}
	}
	o.Free(x.Buf)
}

// TestPinnedMemoryIsRefused checks that copies pass through pageable memory, and that Chosen counts them, where the
// system has no page-locked memory for them: uploads of several pieces, downloads, and weights that are fetched.
func TestPinnedMemoryIsRefused(t *testing.T) {
	t.Setenv("FAKEGPU_PINNED", "4096") // enough for marks
	o := openOps(t)
	if o.dev.Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake device refuses pinned memory")
	}
	const way = "copies through memory that is not pinned"
	n := driver.SlotBytes/4*2 + 1000
	x, y := vector(t, o, n), vector(t, o, n)
	src, got := make([]float32, n), make([]float32, n)
	for i := range src {
		src[i] = float32(i)
	}
	data := make([]byte, 4*n)
	engine.Narrow(data, src, engine.F32)
	for range 3 {
		o.Fill(x, 7)
		o.Upload(x, src)
		fetch := o.Fetch(y, func(piece []byte, at int) error {
			copy(piece, data[at:])
			return nil
		})
		if err := fetch(); err != nil {
			t.Fatal(err)
		}
		o.Fetched()
		o.Add(x, x, y)
		if err := o.Download(got, x).Wait(); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if got[i] != 2*src[i] {
				t.Fatalf("element %d is %g, want %g", i, got[i], 2*src[i])
			}
		}
	}
	if count := o.Chosen()[way]; count != 3*(3+3+1) {
		t.Errorf("%d %s, want 21", count, way)
	}
	o.Free(x.Buf)
	o.Free(y.Buf)
	t.Setenv("FAKEGPU_PINNED", "")
	plain := openOps(t)
	z := vector(t, plain, 64)
	plain.Upload(z, filled(64, 3))
	wantAll(t, plain, z, 3)
	if count := plain.Chosen()[way]; count != 0 {
		t.Errorf("%d %s although there is enough", count, way)
	}
	plain.Free(z.Buf)
}

func TestFreeWaits(t *testing.T) {
	o := openOps(t)
	x, y := vector(t, o, 64), vector(t, o, 64)
	o.Fill(x, 2)
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	o.Add(y, x, x)
	o.Free(x.Buf)
	wantAll(t, o, y, 4)
	o.Free(y.Buf)
}

func TestAllocIsZeroForAll(t *testing.T) {
	dev := openDevice(t)
	a, b := newOps(t, dev), newOps(t, dev)
	for range 8 { // the order of the streams is random
		x, y := vector(t, a, 64), vector(t, b, 64)
		b.Copy(y, x)
		wantAll(t, b, y, 0)
		a.Free(x.Buf)
		b.Free(y.Buf)
	}
}

// newOps makes a stream that the test closes before its device.
func newOps(t testing.TB, dev *Device) *Ops {
	t.Helper()
	o, err := dev.NewOps()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// TestWeightsNeedSync checks that weights packed on one stream are visible to another after Sync. On the fake device,
// which runs streams in a random order, they must sometimes not be visible before it.
func TestWeightsNeedSync(t *testing.T) {
	t.Setenv("FAKEGPU_EAGER", "")
	dev := openDevice(t)
	loader, rank := newOps(t, dev), newOps(t, dev)
	data := make([]byte, 4*64*64)
	engine.Narrow(data, filled(64*64, 1), engine.F32)
	early := false
	for range 12 {
		for _, sync := range []bool{false, true} {
			x, y := vector(t, rank, 16*64), vector(t, rank, 16*64)
			x, y = engine.NewTensor(x.Buf, engine.F32, 16, 64), engine.NewTensor(y.Buf, engine.F32, 16, 64)
			rank.Fill(x, 1)
			p, err := loader.Pack(engine.Matrix{Data: data, DType: engine.F32, N: 64, K: 64}, 0)
			if err != nil {
				t.Fatal(err)
			}
			if sync {
				if err := loader.Sync(); err != nil {
					t.Fatal(err)
				}
			}
			rank.Linear(y, x, &engine.Weight{Base: p}, engine.Epilogue{})
			got := make([]float32, y.Len())
			if err := rank.Download(got, y).Wait(); err != nil {
				t.Fatal(err)
			}
			switch {
			case sync && got[5] != 64:
				t.Fatalf("after Sync: got %g, want 64", got[5])
			case !sync && got[5] != 64:
				early = true
			}
			loader.Free(p.Buf)
			rank.Free(x.Buf)
			rank.Free(y.Buf)
		}
	}
	if !early && dev.Name == "Fake GPU" {
		t.Error("the fake device never read weights before they were there: it cannot find a missing Sync")
	}
}

func TestManyThreads(t *testing.T) {
	dev := openDevice(t)
	var wg sync.WaitGroup
	for i := range 6 {
		o := newOps(t, dev)
		wg.Go(func() {
			for j := range 5 {
				x := vector(t, o, 33)
				o.Fill(x, float32(10*i+j))
				wantAll(t, o, x, float32(10*i+j))
				o.Free(x.Buf)
			}
		})
	}
	wg.Wait()
}

// TestStepAllocatesNothing checks that steps after the first allocate nothing on host or device, and that only the
// download after them waits.
func TestStepAllocatesNothing(t *testing.T) {
	o := openOps(t)
	m := &bench{t: t, ops: o, rng: newRand()}
	x, y := m.normal(engine.BF16, 1, 20, 64), m.normal(engine.BF16, 1, 20, 64)
	w := &engine.Weight{
		Base:     m.weight(engine.BF16, 64, 64),
		Adapters: []engine.Adapter{{Down: m.weight(engine.BF16, 4, 64), Up: m.weight(engine.BF16, 64, 4), Scale: 1}},
	}
	q, out := x.Split(2, 2, 32), y.Split(2, 2, 32)
	got := make([]float32, y.Len())
	step := func() {
		o.AdaLN(x, x, engine.Tensor{}, engine.Tensor{}, 1e-6)
		o.Linear(y, x, w, engine.Epilogue{Act: engine.SiLU})
		o.QKNormRoPE(q, q, engine.Tensor{}, q, q, engine.Tensor{}, engine.QKNorm{Kind: engine.RMSNorm}, engine.RoPE{})
		o.Attention(out, q, q, q, engine.AttentionArgs{})
	}
	read := func() {
		if err := o.Download(got, y).Wait(); err != nil {
			t.Fatal(err)
		}
	}
	step()
	read()
	before := o.dev.Counts()
	if allocs := testing.AllocsPerRun(5, step); allocs != 0 {
		t.Errorf("a step allocates %g times on the host", allocs)
	}
	read()
	after := o.dev.Counts()
	if n := after.Allocations - before.Allocations; n != 0 {
		t.Errorf("steps allocated %d times on the device", n)
	}
	if n := after.Waits - before.Waits; n != 1 {
		t.Errorf("six steps and a download waited %d times, want 1", n)
	}
	for _, b := range m.buf {
		o.Free(b)
	}
}

func TestErrorsNameTheCall(t *testing.T) {
	t.Setenv("FAKEGPU_MEMORY", "1000000")
	o := openOps(t)
	if o.dev.Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake device has a settable memory")
	}
	_, err := o.Alloc(2_000_000)
	var e *driver.Error
	if !errors.As(err, &e) || !errors.Is(err, engine.ErrOutOfMemory) || e.Sticky() || e.Call != "cuMemAlloc_v2" ||
		e.Text == "" {
		t.Errorf("got %#v", err)
	}
	if free, total, err := o.dev.Memory(); err != nil || total != 1000000 || free <= 0 || free > total {
		t.Errorf("memory %d of %d, %v", free, total, err)
	}
}

func TestOldDevicesAreRefusedByName(t *testing.T) {
	t.Setenv("FAKEGPU_MAJOR", "7")
	d, err := Open(driverFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.Devices()
	if err != nil || len(list) != 1 {
		t.Fatalf("devices: %v, %v", list, err)
	}
	if list[0].Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake device can be old")
	}
	if _, err := d.Device(0); err == nil ||
		err.Error() != "cuda:0: Fake GPU has compute capability 7.6; 8.0 is the least that works" {
		t.Errorf("got %v", err)
	}
	if _, err := d.Device(3); err == nil {
		t.Error("device 3 of one was opened")
	}
}

func TestMissingDriver(t *testing.T) {
	_, err := Open(t.TempDir())
	if err == nil {
		t.Skip("NOT RUN: this machine has a driver")
	}
	if !errors.Is(err, ErrNotOpened) || !strings.Contains(err.Error(), driver.Library) {
		t.Errorf("got %v", err)
	}
}

// TestLaunchLimits checks what no launch of optest can: that the smallest supported GPU has enough shared memory for
// every kernel.
func TestLaunchLimits(t *testing.T) {
	for k, v := range kernels {
		if v.name == "" || v.shared > sharedLimit {
			t.Errorf("kernel %d %q asks for %d bytes of shared memory, at most %d", k, v.name, v.shared, sharedLimit)
		}
	}
}
