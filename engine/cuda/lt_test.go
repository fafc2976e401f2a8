//go:build cgo && fakegpu

package cuda

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda/library"
	"patchbay/engine/gguf"
	"patchbay/tests/fakegpu"
)

// openLibrary opens device 0 with the cuBLASLt of the fake device, or with that of PATCHBAY_TEST_CUBLASLT on a GPU.
func openLibrary(t testing.TB) *Device {
	t.Helper()
	return openLibraryOf(t, cmp.Or(os.Getenv("PATCHBAY_TEST_CUBLASLT"), driverFolder(t)))
}

// openLibraryOf is openLibrary with the library in dir.
func openLibraryOf(t testing.TB, dir string) *Device {
	t.Helper()
	d, err := Open(driverFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := d.Use(&library.Search{Folders: dir})
	if list, _ := d.Devices(); found.Path == "" && len(list) > 0 && list[0].Name != "Fake GPU" {
		t.Skipf("NOT RUN: no cuBLASLt (PATCHBAY_TEST_CUBLASLT names its folder): %v", found.Err)
	}
	if err != nil || found.Path == "" {
		t.Fatalf("cuBLASLt: %+v, %v", found, err)
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

// TestLibrary compares products by cuBLASLt with ref in every form that the library supports: items that form one
// matrix and items that do not, bias, activation, residual in place and separate, gate. Our kernels must compute the
// others.
func TestLibrary(t *testing.T) {
	dev := openLibrary(t)
	o := newOps(t, dev)
	type form struct {
		batch, rows, n, k int
		gap               int // elements between the rows of x and of y
		act               engine.Act
		bias              bool
		residual, gate    string // residual: in place or beside; gate: one for all items or one for each; "": none
		kernels           bool   // computed by our kernels
		ranks             []int  // of adapters
	}
	for i, c := range []form{
		{1, 20, 24, 40, 0, engine.ActNone, false, "", "", false, nil},
		{1, 20, 24, 40, 0, engine.ActNone, true, "", "", false, nil},
		{1, 9, 18, 33, 8, engine.GELUTanh, true, "", "", false, nil},
		{1, 20, 24, 40, 8, engine.GELUTanh, false, "", "", false, nil},
		{1, 20, 24, 40, 8, engine.ReLU, true, "", "", false, nil},
		{2, 12, 40, 24, 0, engine.ReLU, false, "", "", false, nil},
		{3, 12, 40, 24, 16, engine.ActNone, true, "in", "", false, nil},
		{2, 12, 24, 48, 8, engine.ActNone, false, "beside", "", false, nil},
		{2, 12, 22, 48, 0, engine.ActNone, true, "in", "one", false, nil},
		{2, 12, 24, 48, 8, engine.GELUTanh, true, "beside", "each", false, nil},
		{2, 12, 24, 48, 0, engine.GELUTanh, true, "beside", "", false, nil},
		{1, 8, 24, 40, 0, engine.ActNone, true, "", "", true, nil},     // few rows: one warp per feature
		{1, 20, 24, 40, 0, engine.SiLU, true, "", "", true, nil},       // not an epilogue of the library
		{1, 20, 24, 40, 0, engine.ActNone, true, "", "one", true, nil}, // nothing to add it to
		{1, 20, 21, 40, 3, engine.ActNone, true, "", "", true, nil},    // the library has no algorithm
		{1, 20, 24, 40, 3, engine.ActNone, true, "", "", true, nil},    // rows that are not aligned
		{1, 20, 24, 40, 0, engine.ActNone, true, "", "", false, []int{8}},
		{2, 12, 24, 48, 8, engine.GELUTanh, true, "", "", false, []int{4, 3}},
		{3, 12, 40, 24, 16, engine.ActNone, false, "in", "", false, []int{5, 16}},
		{2, 12, 24, 48, 8, engine.ActNone, true, "beside", "each", false, []int{12}},
		{1, 20, 24, 40, 0, engine.SiLU, true, "", "", true, []int{8}},
	} {
		t.Run(fmt.Sprintf("%d/%d %d %d %d", i, c.batch, c.rows, c.n, c.k), func(t *testing.T) {
			before := o.chosen
			compare(t, o, 1.0/96, func(m *bench) engine.Tensor {
				cut := func(width int) engine.Tensor { // items are not adjacent where there is a gap
					return m.normal(engine.BF16, c.batch, c.rows+c.gap%5, width+(8-width%8)%8+c.gap).Slice(1, 0, c.rows).
						Slice(2, 0, width)
				}
				x, y := cut(c.k), cut(c.n)
				w := &engine.Weight{Base: m.weight(engine.BF16, c.n, c.k)}
				if c.bias {
					w.Bias = m.normal(engine.F32, c.n)
				}
				for _, r := range c.ranks {
					w.Adapters = append(w.Adapters, engine.Adapter{
						Down: m.weight(engine.F16, r, c.k), Up: m.weight(engine.F32, c.n, r), Scale: 2,
					})
				}
				e := engine.Epilogue{Act: c.act}
				switch c.residual {
				case "in":
					e.Residual = y
				case "beside":
					e.Residual = m.normal(engine.BF16, c.batch, c.rows, c.n)
				}
				switch c.gate {
				case "one":
					e.Gate = m.normal(engine.F32, 1, c.n)
				case "each":
					e.Gate = m.normal(engine.F32, c.batch, c.n)
				}
				m.ops.Linear(y, x, w, e)
				out := m.normal(engine.BF16, c.batch, c.rows, c.n)
				m.ops.Copy(out, y)
				return out
			})
			want := chosen{library: before.library + 1, kernels: before.kernels}
			if c.kernels {
				want = chosen{library: before.library, kernels: before.kernels + 1}
			}
			if o.chosen != want {
				t.Errorf("products by the library, by our kernels, and shapes refused: %v, want %v", o.chosen, want)
			}
		})
	}
}

// TestRoundedBias checks that the library adds a bias that the weight has in bf16 as it is: a launch fewer for each
// product, the same bits as with a bias that is converted, and within the tolerance those of ref, which adds it in f32.
// Also where a weight in blocks is widened tile by tile, with adapters, and in convolutions.
func TestRoundedBias(t *testing.T) {
	o := newOps(t, openLibrary(t))
	const rows, n, k = 20, 600, 256
	for _, c := range []struct {
		name     string
		products int64
		ranks    int
		call     func(m *bench, w *engine.Weight) engine.Tensor
	}{
		{"linear", 1, 0, func(m *bench, w *engine.Weight) engine.Tensor {
			x, y := m.normal(engine.BF16, rows, k), m.normal(engine.BF16, rows, n)
			m.ops.Linear(y, x, w, engine.Epilogue{Act: engine.GELUTanh})
			return y
		}},
		{"adapters", 1, 8, func(m *bench, w *engine.Weight) engine.Tensor {
			x, y := m.normal(engine.BF16, rows, k), m.normal(engine.BF16, rows, n)
			m.ops.Linear(y, x, w, engine.Epilogue{})
			return y
		}},
		{"in tiles", 3, 0, func(m *bench, w *engine.Weight) engine.Tensor {
			w.Base = m.keep(m.randomBlocks(gguf.Q8v0, n, k, true))
			x, y := m.normal(engine.BF16, rows, k), m.normal(engine.BF16, rows, n)
			m.ops.Linear(y, x, w, engine.Epilogue{})
			return y
		}},
		{"convolution", 1, 0, func(m *bench, w *engine.Weight) engine.Tensor {
			x, y := m.normal(engine.BF16, 1, 4, 5, k), m.normal(engine.BF16, 1, 4, 5, n)
			m.ops.Conv2D(y, x, w, engine.ConvArgs{KY: 1, KX: 1, Stride: 1})
			return y
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.widenedTile = widenedTileStep * k * engine.BF16.Size()
			launches := int64(0)
			call := func(rounded bool) func(m *bench) engine.Tensor {
				return func(m *bench) engine.Tensor {
					bias := m.numbers(n, 1)
					load := func(d engine.DType) engine.Tensor {
						b := m.normal(d, n)
						m.ops.Upload(b, bias)
						return b
					}
					w := &engine.Weight{Base: m.weight(engine.BF16, n, k), Bias: load(engine.F32)}
					if b := load(engine.BF16); rounded {
						w.BiasBF16 = b
					}
					if c.ranks > 0 {
						w.Adapters = []engine.Adapter{
							{Down: m.weight(engine.BF16, c.ranks, k), Up: m.weight(engine.BF16, n, c.ranks), Scale: 1},
						}
					}
					before := o.dev.Counts().Launches
					y := c.call(m, w)
					o.Flush()
					launches = o.dev.Counts().Launches - before
					return y
				}
			}
			results(t, o, call(false)) // compares shapes with our kernels
			before := o.chosen.library
			converted := results(t, o, call(false))
			without := launches
			if rounded := results(t, o, call(true)); !slices.Equal(rounded, converted) {
				t.Error("other bits than with a bias that is converted")
			}
			if launches != without-c.products || o.chosen.library-before != 2*c.products {
				t.Errorf("%d launches, %d with conversions, %d products by the library, want %d fewer and %d", launches,
					without, o.chosen.library-before, c.products, 2*c.products)
			}
			compare(t, o, 1.0/64, call(true))
		})
	}
}

// TestHeldSumsKeepTheirMemory checks that a gated sum that is held back reads its product before a larger call takes
// other scratch memory in the place of it.
func TestHeldSumsKeepTheirMemory(t *testing.T) {
	o := newOps(t, openLibrary(t))
	grown := false
	for pass := range 2 { // the first one compares shapes
		compare(t, o, 1.0/96, func(m *bench) engine.Tensor {
			x, y, gate := m.normal(engine.BF16, 1, 20, 40), m.normal(engine.BF16, 1, 20, 24), m.normal(engine.F32, 1, 24)
			w := &engine.Weight{Base: m.weight(engine.BF16, 24, 40)}
			m.ops.Linear(y, x, w, engine.Epilogue{Residual: y, Gate: gate})
			if m.ops == engine.Ops(o) {
				before := o.mem.at
				if err := o.mem.need(o.mem.bytes + 1<<20); err != nil {
					t.Fatal(err)
				}
				grown = pass == 1 && o.mem.at != before && o.chosen.library > 0
			}
			return y
		})
	}
	if !grown {
		t.Error("the library or the memory stayed as they were")
	}
}

// TestLibraryConvolves compares convolutions by cuBLASLt with ref, whole and in strips of lines, with a residual, with
// adapters, and with a 1x1 kernel, which multiplies the pixels of the image directly.
func TestLibraryConvolves(t *testing.T) {
	o := newOps(t, openLibrary(t))
	for i, c := range []struct {
		kernel, ranks, strip int
		residual             bool
		calls                int64
	}{
		{3, 0, stripBytes, false, 2},
		{3, 0, 9 * 16 * 2 * 8 * 3, true, 2 * 3},
		{3, 4, 9 * 16 * 2 * 8 * 3, true, 2 * 3},
		{1, 0, stripBytes, true, 2},
		{1, 5, stripBytes, false, 2},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			before := o.chosen
			o.strip = c.strip
			compare(t, o, 1.0/96, func(m *bench) engine.Tensor {
				x, y := m.normal(engine.BF16, 2, 9, 8, 16), m.normal(engine.BF16, 2, 9, 8, 24)
				k := c.kernel * c.kernel * 16
				w := &engine.Weight{Base: m.weight(engine.BF16, 24, k), Bias: m.normal(engine.F32, 24)}
				if c.ranks > 0 {
					w.Adapters = []engine.Adapter{
						{Down: m.weight(engine.BF16, c.ranks, k), Up: m.weight(engine.BF16, 24, c.ranks), Scale: 1},
					}
				}
				pad := c.kernel / 2
				a := engine.ConvArgs{KY: c.kernel, KX: c.kernel, Stride: 1, Top: pad, Bottom: pad, Left: pad, Right: pad}
				if c.residual {
					a.Residual = m.normal(engine.BF16, 2, 9, 8, 24)
				}
				m.ops.Conv2D(y, x, w, a)
				return y
			})
			if want := (chosen{library: before.library + c.calls, kernels: before.kernels}); o.chosen != want {
				t.Errorf("products by the library, by our kernels, and shapes refused: %v, want %v", o.chosen, want)
			}
		})
	}
}

// TestLibraryReserved checks that after a recording pass and Reserve not even the first step allocates or waits.
func TestLibraryReserved(t *testing.T) {
	dev := openLibrary(t)
	loader, o := newOps(t, dev), newOps(t, dev)
	m := &bench{t: t, ops: loader, rng: newRand()}
	x, y := m.normal(engine.BF16, 2, 30, 64), m.normal(engine.BF16, 2, 30, 64)
	w := &engine.Weight{Base: m.weight(engine.BF16, 64, 64), Bias: m.normal(engine.F32, 64)}
	gate := m.normal(engine.F32, 1, 64)
	adapted := &engine.Weight{Base: w.Base, Adapters: []engine.Adapter{
		{Down: m.weight(engine.BF16, 4, 64), Up: m.weight(engine.BF16, 64, 4), Scale: 1},
	}}
	step := func(o engine.Ops) {
		o.Linear(y, x, adapted, engine.Epilogue{Act: engine.GELUTanh})
		o.Linear(y, x, w, engine.Epilogue{Act: engine.GELUTanh})
		o.Linear(x, y, w, engine.Epilogue{Residual: x, Gate: gate})
		o.Linear(y.Index(0, 0), x.Index(0, 1), w, engine.Epilogue{})
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
	if got := int64(o.mem.bytes); got != want || got < int64(dev.lt.Space) || o.Scratch(calls) != want {
		t.Errorf("%d bytes of scratch memory, %d promised, %d for the library", got, want, dev.lt.Space)
	}
	before := dev.Counts()
	step(o)
	after := dev.Counts()
	if o.chosen.library != 4 || after.Allocations != before.Allocations || after.Waits != before.Waits {
		t.Errorf("%d products by the library, %d allocations, %d waits; want 4, 0, 0", o.chosen.library,
			after.Allocations-before.Allocations, after.Waits-before.Waits)
	}
	if n := testing.AllocsPerRun(5, func() { step(o) }); n != 0 {
		t.Errorf("a step costs the host %g allocations, want 0", n)
	}
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	m.free()
}

// TestLibraryManyThreads checks concurrent products on the streams of several goroutines, each in its own order.
func TestLibraryManyThreads(t *testing.T) {
	dev := openLibrary(t)
	var wg sync.WaitGroup
	for i := range 4 {
		o := newOps(t, dev)
		wg.Go(func() {
			m := &bench{t: t, ops: o, rng: newRand()}
			x, y := m.normal(engine.BF16, 16, 16), m.normal(engine.BF16, 16, 16)
			w := &engine.Weight{Base: m.weight(engine.BF16, 16, 16), Bias: m.normal(engine.F32, 16)}
			for j := range 3 {
				o.Fill(x, 0)
				o.Fill(w.Bias, float32(4*i+j))
				o.Linear(y, x, w, engine.Epilogue{})
				out := engine.NewTensor(y.Buf, engine.BF16, 256)
				wantAll(t, o, out, float32(4*i+j))
			}
			m.free()
			if o.library != 3 {
				t.Errorf("%d products by the library, want 3", o.library)
			}
		})
	}
	wg.Wait()
}

// TestLibraryWithoutMemory checks that our kernel computes a product if there is no memory to verify the library.
func TestLibraryWithoutMemory(t *testing.T) {
	full := filepath.Join(t.TempDir(), "full")
	t.Setenv("FAKEGPU_FULL", full)
	dev := openLibrary(t)
	if dev.Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake device has no memory when it is told to")
	}
	o := newOps(t, dev)
	m := &bench{t: t, ops: o, rng: newRand()}
	x, y := m.normal(engine.BF16, 16, 16), m.normal(engine.BF16, 16, 16)
	w := &engine.Weight{Base: m.weight(engine.BF16, 16, 16), Bias: m.normal(engine.F32, 16)}
	o.Fill(x, 0)
	o.Fill(w.Bias, 3)
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Linear(y, x, w, engine.Epilogue{})
	wantAll(t, o, engine.NewTensor(y.Buf, engine.BF16, 256), 3)
	if want := (chosen{kernels: 1}); o.chosen != want {
		t.Errorf("products by the library, by our kernels, and shapes refused: %v, want %v", o.chosen, want)
	}
	m.free()
}

// TestLibraryThatLacksAFunction checks that a library without a needed function is an error that names its folder, and
// that the driver goes on without the library.
func TestLibraryThatLacksAFunction(t *testing.T) {
	dir := fakegpu.Library(t, fakegpu.Change{
		File: "libcublasLt.cc", Old: "cublasLtMatmulDescDestroy(", New: "gone(",
	})
	d, err := Open(driverFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = d.Use(&library.Search{Folders: dir})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "no cublasLtMatmulDesc") {
		t.Errorf("got %v", err)
	}
	if d.lt != nil {
		t.Error("the library is kept")
	}
}

// TestLibraryThatIsWrong checks that a library whose results differ from ours is not used, so products stay right.
func TestLibraryThatIsWrong(t *testing.T) {
	if openDevice(t).Name != "Fake GPU" {
		t.Skip("NOT RUN: no library at hand is wrong")
	}
	const bias, beta = "sum += widen(c.d.bias[i]);", "if (c.beta != 0) sum +="
	for name, c := range map[string]struct {
		old, replaced string
		k             int
	}{
		"another bias": {bias, "sum += widen(c.d.bias[0]);", 24},
		"no bias":      {bias, "", 12288},
		"no residual":  {beta, "if (c.beta < 0) sum +=", 12288},
	} {
		t.Run(name, func(t *testing.T) {
			dev := openLibraryOf(t, fakegpu.Library(t, fakegpu.Change{File: "libcublasLt.cc", Old: c.old, New: c.replaced}))
			o := newOps(t, dev)
			for range 2 {
				compare(t, o, 1.0/96, func(m *bench) engine.Tensor {
					x, y := m.normal(engine.BF16, 16, c.k), m.normal(engine.BF16, 16, 16)
					w := &engine.Weight{Base: m.weight(engine.BF16, 16, c.k), Bias: m.normal(engine.F32, 16)}
					m.ops.Linear(y, x, w, engine.Epilogue{Residual: y})
					return y
				})
			}
			if want := (chosen{kernels: 2, refused: 1}); o.chosen != want {
				t.Errorf("products by the library, by our kernels, and shapes refused: %v, want %v", o.chosen, want)
			}
		})
	}
}

// TestLibraryThatFails checks that our kernel computes shapes for which the library has no algorithm, or fails when it
// is asked.
func TestLibraryThatFails(t *testing.T) {
	dev := openLibrary(t)
	if dev.Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake library fails for some shapes")
	}
	for _, c := range []struct {
		features int
		bias     bool
		want     chosen
	}{
		{26, false, chosen{kernels: 2, unplannedProducts: 1}},
		{30, true, chosen{kernels: 2}},
		{30, false, chosen{library: 2}},
	} {
		t.Run(fmt.Sprintf("%d features, bias %t", c.features, c.bias), func(t *testing.T) {
			o := newOps(t, dev)
			for range 2 {
				compare(t, o, 1.0/96, func(m *bench) engine.Tensor {
					x, y := m.normal(engine.BF16, 20, 24), m.normal(engine.BF16, 20, 32).Slice(1, 0, c.features)
					w := &engine.Weight{Base: m.weight(engine.BF16, c.features, 24)}
					if c.bias {
						w.Bias = m.normal(engine.F32, c.features)
					}
					m.ops.Linear(y, x, w, engine.Epilogue{})
					return m.dense(y)
				})
			}
			if o.chosen != c.want {
				t.Errorf("products by the library, by our kernels, and shapes refused: %+v, want %+v", o.chosen, c.want)
			}
		})
	}
}
