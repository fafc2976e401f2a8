//go:build cgo

package cpu

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cpu/emulated"
	"patchbay/engine/cpu/kernels"
)

func TestLevels(t *testing.T) {
	have := Levels()
	if len(have) == 0 || have[0] != "generic" {
		t.Fatalf("levels: got %v, want generic first", have)
	}
	o, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "cpu/" + have[len(have)-1]; o.Name() != want {
		t.Errorf("default level: got %s, want %s", o.Name(), want)
	}
	if o.Threads() < 1 {
		t.Errorf("threads: got %d", o.Threads())
	}
	for _, c := range []struct {
		c    Config
		want string
	}{
		{Config{Level: "avx9000"}, have[len(have)-1]},
		{Config{Threads: -1}, "-1"},
	} {
		if _, err := New(c.c); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%+v): got error %v, want one with %q", c.c, err, c.want)
		}
	}
	for _, level := range kernels.Levels() {
		_, err := New(Config{Level: level.Name})
		if has := slices.Contains(have, level.Name); has != (err == nil) {
			t.Errorf("New at level %s: error %v, CPU has it: %v", level.Name, err, has)
		}
	}
}

func TestAllocZeroedAligned(t *testing.T) {
	o, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 63, 4096, 5 << 20} {
		for range 2 { // the second time the system may reuse the pages just freed
			b, err := o.Alloc(n)
			if err != nil {
				t.Fatal(err)
			}
			if b.Host == nil || len(b.Host) != n {
				t.Fatalf("Alloc(%d): %d bytes", n, len(b.Host))
			}
			if p := uintptr(unsafe.Pointer(unsafe.SliceData(b.Host))); p%64 != 0 {
				t.Errorf("Alloc(%d): address %#x is not a multiple of 64", n, p)
			}
			for i := range b.Host {
				if b.Host[i] != 0 {
					t.Fatalf("Alloc(%d): byte %d is %d", n, i, b.Host[i])
				}
				b.Host[i] = 0xff
			}
			o.Free(b)
		}
	}
	if _, err := o.Alloc(1 << 60); err == nil {
		t.Error("Alloc(2^60): no error")
	}
}

func TestEachCallsEveryTaskOnce(t *testing.T) {
	for _, workers := range []int{1, 2, 7} {
		for _, n := range []int{0, 1, 2, 100} {
			seen := make([][]int, workers)
			each(workers, n, func(w, task int) { seen[w] = append(seen[w], task) })
			all := slices.Sorted(slices.Values(slices.Concat(seen...)))
			want := make([]int, n)
			for i := range want {
				want[i] = i
			}
			if !slices.Equal(all, want) {
				t.Errorf("each(%d, %d): got tasks %v", workers, n, all)
			}
		}
	}
}

func TestEachRethrowsOnTheCaller(t *testing.T) {
	cause := errors.New("boom")
	for _, bad := range []int{0, 57, 99} {
		func() {
			defer func() {
				p, ok := recover().(*TaskPanic)
				if !ok || !errors.Is(p, cause) || !strings.Contains(string(p.Stack), "TestEachRethrows") {
					t.Errorf("task %d: recovered %v", bad, p)
				}
			}()
			each(4, 100, func(_, task int) {
				if task == bad {
					panic(cause)
				}
			})
		}()
	}
}

func TestForeignWeightsPanic(t *testing.T) {
	generic, err := New(Config{Level: "generic"})
	if err != nil {
		t.Fatal(err)
	}
	levels := slices.DeleteFunc(append(kernels.Levels()[1:], emulated.AVX512()), func(l kernels.Level) bool {
		return l.Table == nil
	})
	if len(levels) == 0 {
		t.Skip("NOT RUN: this CPU has no second level, and without -tags emulated there is none")
	}
	wide, err := New(Config{Kernels: levels[0]})
	if err != nil {
		t.Fatal(err)
	}
	w := packNoise(t, generic, engine.F32, 8, 8, 0)
	defer generic.Free(w.Base.Buf)
	v := engine.FromF32(make([]float32, 8), 1, 8)
	defer func() {
		if e, ok := recover().(*engine.ShapeError); !ok || !strings.Contains(e.Error(), "packed") {
			t.Errorf("recovered %v, want a ShapeError that says how the weight is packed", e)
		}
	}()
	wide.Linear(engine.FromF32(make([]float32, 8), 1, 8), v, w, engine.Epilogue{})
}

// TestAdaptersAreLimited checks that too many adapters cause a panic that names the call.
func TestAdaptersAreLimited(t *testing.T) {
	o, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := packNoise(t, o, engine.F32, 8, 8, 0)
	a := engine.Adapter{Down: w.Base, Up: w.Base, Scale: 1}
	w.Adapters = slices.Repeat([]engine.Adapter{a}, 32)
	x, y := engine.FromF32(make([]float32, 8), 1, 1, 1, 8), engine.FromF32(make([]float32, 8), 1, 1, 1, 8)
	for op, call := range map[string]func(){
		"Linear": func() { o.Linear(y.Index(0, 0).Index(0, 0), x.Index(0, 0).Index(0, 0), w, engine.Epilogue{}) },
		"Conv2D": func() { o.Conv2D(y, x, w, engine.ConvArgs{KY: 1, KX: 1, Stride: 1}) },
	} {
		func() {
			defer func() {
				e, ok := recover().(*engine.ShapeError)
				if !ok || e.Op != op || e.Rule != "at most 31 adapters a weight" {
					t.Errorf("%s: recovered %v", op, e)
				}
			}()
			call()
		}()
	}
	o.Free(w.Base.Buf)
}

// TestSteadyCallsAllocateLittle checks that, after the first call with a shape, an operation allocates at most the
// closures of its tasks and nothing that grows with the shape.
func TestSteadyCallsAllocateLittle(t *testing.T) {
	o, err := New(Config{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	const l, e = 300, 256
	x, y := engine.FromF32(noise(l*e, 1), 1, l, e), engine.FromF32(make([]float32, l*e), 1, l, e)
	heads := func(t engine.Tensor) engine.Tensor { return t.Split(2, 4, 64) }
	w := packNoise(t, o, engine.BF16, e, e, 0)
	for name, f := range map[string]func(){
		"Linear":    func() { o.Linear(y, x, w, engine.Epilogue{}) },
		"Attention": func() { o.Attention(heads(y), heads(x), heads(x), heads(x), engine.AttentionArgs{}) },
		"LayerNorm": func() { o.LayerNorm(y, x, engine.Tensor{}, engine.Tensor{}, 1e-6) },
		"Add":       func() { o.Add(y, y, x) },
	} {
		f()
		if n := testing.AllocsPerRun(20, f); n > 24 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
	}
}

func TestStatsDoNotDependOnThreads(t *testing.T) {
	x := engine.FromF32(noise(2*40*90*64, 3), 2, 40, 90, 64)
	var first []byte
	for threads := 1; threads <= 3; threads++ {
		o, err := New(Config{Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		buf := engine.Buf{Host: make([]byte, 2*8*2*8)}
		o.GroupNormStats(engine.NewTensor(buf, engine.F64, 2, 8, 2), x, 8)
		if first == nil {
			first = buf.Host
		} else if !slices.Equal(first, buf.Host) {
			t.Errorf("%d threads: other bits than with one", threads)
		}
	}
}

func ExampleLevels() {
	fmt.Println(Levels()[0])
	// Output: generic
}
