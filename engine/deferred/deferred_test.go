package deferred_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/optest"
	"patchbay/engine/ref"
)

func TestConformance(t *testing.T) {
	optest.Run(t, deferred.New(ref.New()), optest.Options{BF16: true})
}

// arena makes an arena of the given size, watched by d.
func arena(t *testing.T, d *deferred.Ops, bytes int) *engine.Arena {
	t.Helper()
	buf, err := d.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	a := engine.NewArena("test", buf, bytes)
	d.Watch(a)
	return a
}

func TestNothingRunsBeforeWait(t *testing.T) {
	d := deferred.New(ref.New())
	a := arena(t, d, 4096)
	x, y := a.Alloc(engine.F32, 4), a.Alloc(engine.F32, 4)
	src := []float32{1, 2, 3, 4}
	d.Upload(x, src)
	clear(src)
	d.Add(y, x, x)
	first, second := []float32{-1, -1, -1, -1}, []float32{-1, -1, -1, -1}
	one := d.Download(first, y)
	d.Fill(y, 9)
	two := d.Download(second, y)
	if want := []float32{-1, -1, -1, -1}; !slices.Equal(first, want) || !slices.Equal(y.F32(), make([]float32, 4)) {
		t.Fatalf("before Wait: host slice %v, want %v; device %v, want zeros", first, want, y.F32())
	}
	if err := one.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := []float32{2, 4, 6, 8}; !slices.Equal(first, want) {
		t.Errorf("after the first Wait: got %v, want %v", first, want)
	}
	if d.Queued() != 2 || second[0] != -1 {
		t.Errorf("the first Wait ran what comes after it: %d calls queued, want 2; second download %v", d.Queued(), second)
	}
	for range 2 { // a second Wait of the same Pending does nothing
		if err := two.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if want := []float32{9, 9, 9, 9}; !slices.Equal(second, want) || d.Queued() != 0 {
		t.Errorf("after the second Wait: got %v, want %v; %d calls queued, want 0", second, want, d.Queued())
	}
}

// step stands in for a sampler step: it scales x by a factor that the host computes from a download. With early, it
// makes the mistake of not waiting for the download.
func step(ops engine.Ops, a *engine.Arena, early bool) []float32 {
	x := a.Alloc(engine.F32, 1, 1, 4)
	gate := a.Alloc(engine.F32, 1, 4)
	ops.Upload(x, []float32{1, 2, 3, 4})
	host := make([]float32, 4)
	pending := ops.Download(host, x)
	if !early {
		_ = pending.Wait()
	}
	ops.Upload(gate, []float32{host[3], host[2], host[1], host[0]})
	ops.GatedAdd(x, x, gate, x, engine.Tensor{})
	out := make([]float32, 4)
	_ = ops.Download(out, x).Wait()
	return out
}

func TestCatchesAnEarlyHostRead(t *testing.T) {
	run := func(ops engine.Ops, early bool) []float32 {
		buf, err := ops.Alloc(1024)
		if err != nil {
			t.Fatal(err)
		}
		return step(ops, engine.NewArena("step", buf, 1024), early)
	}
	want := []float32{5, 8, 9, 8}
	if got := run(deferred.New(ref.New()), false); !slices.Equal(got, want) {
		t.Errorf("correct step, deferred: got %v, want %v", got, want)
	}
	if got := run(ref.New(), true); !slices.Equal(got, want) {
		t.Errorf("early read, run directly: got %v, want %v: the mistake must be invisible here", got, want)
	}
	if got := run(deferred.New(ref.New()), true); slices.Equal(got, want) {
		t.Errorf("early read, deferred: got the correct %v, the mistake went unnoticed", got)
	}
}

func TestReleasedMemoryIsPoisonedInStreamOrder(t *testing.T) {
	d := deferred.New(ref.New())
	a := arena(t, d, 4096)
	result := a.Alloc(engine.F32, 5)
	mark := a.Mark()
	temp := a.Alloc(engine.F32, 5)
	d.Fill(temp, 3)
	d.Copy(result, temp)
	a.Release(mark) // temp is dead from here
	got, dead := make([]float32, 5), make([]float32, 5)
	pending := d.Download(got, result)
	if err := d.Download(dead, temp).Wait(); err != nil {
		t.Fatal(err)
	}
	if err := pending.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := []float32{3, 3, 3, 3, 3}; !slices.Equal(got, want) {
		t.Errorf("value used before the release: got %v, want %v", got, want)
	}
	for i, v := range dead {
		if v == v {
			t.Errorf("released element %d: got %g, want NaN", i, v)
		}
	}
}

func TestHostArgumentsAreCopied(t *testing.T) {
	d := deferred.New(ref.New())
	a := arena(t, d, 1<<16)
	table, rows := a.Alloc(engine.F32, 3, 2), a.Alloc(engine.F32, 2, 2)
	d.Upload(table, []float32{1, 2, 3, 4, 5, 6})
	ids := []int32{2, 0}
	d.Gather(rows, table, ids)
	clear(ids)
	q, o := a.Alloc(engine.F32, 1, 1, 1, 2), a.Alloc(engine.F32, 1, 1, 1, 2)
	kv := table.Slice(0, 0, 2).Unsqueeze(0).Unsqueeze(2) // keys (1, 2) and (3, 4)
	lens := []int{1}
	d.Attention(o, q, kv, kv, engine.AttentionArgs{KeyLen: lens})
	lens[0] = 2
	packed, err := d.Pack(engine.Matrix{Data: make([]byte, 16), DType: engine.F32, N: 2, K: 2}, 0)
	if err != nil {
		t.Fatal(err)
	}
	bias := a.Alloc(engine.F32, 2)
	d.Fill(bias, 7)
	w := &engine.Weight{Base: packed, Bias: bias}
	y := a.Alloc(engine.F32, 2, 2)
	d.Linear(y, rows, w, engine.Epilogue{})
	w.Bias = engine.Tensor{}
	for _, c := range []struct {
		name string
		t    engine.Tensor
		want []float32
	}{{"ids", rows, []float32{5, 6, 1, 2}}, {"KeyLen", o, []float32{1, 2}}, {"weight", y, []float32{7, 7, 7, 7}}} {
		got := make([]float32, c.t.Len())
		if err := d.Download(got, c.t).Wait(); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s changed after the call: got %v (%v), want %v", c.name, got, err, c.want)
		}
	}
}

func TestNameAndNaN(t *testing.T) {
	d := deferred.New(ref.New())
	if got := d.Name(); !strings.Contains(got, "ref") {
		t.Errorf("name: got %q, want one that contains ref", got)
	}
	x := arena(t, d, 64).Alloc(engine.F32, 1)
	got := make([]float32, 1)
	d.Fill(x, float32(math.NaN()))
	if err := d.Download(got, x).Wait(); err != nil || got[0] == got[0] {
		t.Errorf("NaN through the queue: got %v (%v)", got, err)
	}
}

// counter counts the bytes that an Ops has allocated and not freed.
type counter struct {
	engine.Ops
	bytes  int
	closed bool
}

func (c *counter) Alloc(n int) (engine.Buf, error) {
	c.bytes += n
	return c.Ops.Alloc(n)
}

func (c *counter) Free(b engine.Buf) {
	c.bytes -= len(b.Host)
	c.Ops.Free(b)
}

func (c *counter) Close() error {
	c.closed = true
	return nil
}

// TestCloseFreesWhatIsQueued checks that Close runs the queued frees and closes the inner Ops.
func TestCloseFreesWhatIsQueued(t *testing.T) {
	inner := &counter{Ops: ref.New()}
	d := deferred.New(inner)
	b, err := d.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	d.Free(b)
	if inner.bytes != 4096 {
		t.Errorf("%d bytes are taken before the queue has come to Free, want 4096", inner.bytes)
	}
	if err := d.Close(); err != nil || inner.bytes != 0 || !inner.closed {
		t.Errorf("closed: %d bytes are taken, inner Ops closed: %v, %v", inner.bytes, inner.closed, err)
	}
}
