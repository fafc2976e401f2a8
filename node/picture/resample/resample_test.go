package resample

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine/safetensors"
	"patchbay/tests/golden"
)

// recorded is one call, recorded by tests/reference/make_resample.py.
type recorded struct {
	N             int
	In            string
	Op            string
	Method        string
	Crop          string
	Layout        string
	Width, Height int
	Expand        int
	Tapered       bool
	Edges         [4]int

	in, out safetensors.Tensor
}

func (g recorded) String() string {
	switch g.Op {
	case "grow":
		return fmt.Sprintf("case %d: grow %v by %d tapered %v", g.N, g.in.Shape, g.Expand, g.Tapered)
	case "feather":
		return fmt.Sprintf("case %d: feather %v by %v", g.N, g.in.Shape, g.Edges)
	}
	return fmt.Sprintf("case %d: %s %v to %d x %d crop %s layout %s", g.N, g.Method, g.in.Shape, g.Width,
		g.Height, g.Crop, g.Layout)
}

func cases(t *testing.T, op string) []recorded {
	t.Helper()
	f, err := golden.Open("nodes/resample.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	var all, out []recorded
	if err := json.Unmarshal([]byte(f.Metadata()["cases"]), &all); err != nil {
		t.Fatal(err)
	}
	for _, g := range all {
		if g.Op == op {
			g.in, _ = f.Entry(g.In)
			g.out, _ = f.Entry(fmt.Sprintf("out.%d", g.N))
			out = append(out, g)
		}
	}
	return out
}

func values(t *testing.T, e safetensors.Tensor) []float32 {
	t.Helper()
	v, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// worst returns the largest difference and its index. A NaN on one side only counts as infinite.
func worst(got, want []float32) (float64, int) {
	most, at := 0.0, 0
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if got[i] != got[i] && want[i] != want[i] {
			d = 0
		} else if d != d {
			d = math.Inf(1)
		}
		if d > most {
			most, at = d, i
		}
	}
	return most, at
}

// turned returns m in the other layout.
func turned(m Image) Image {
	out := m
	out.Layout, out.Data = ChannelsLast-m.Layout, make([]float32, len(m.Data))
	for n := range m.B {
		for y := range m.Y {
			for x := range m.X {
				a, sa := m.stride(n, y, x)
				b, sb := out.stride(n, y, x)
				for c := range m.C {
					out.Data[b+c*sb] = m.Data[a+c*sa]
				}
			}
		}
	}
	return out
}

func image(t *testing.T, e safetensors.Tensor) Image {
	s := e.Shape
	return Image{Data: values(t, e), B: s[0], C: s[1], Y: s[2], X: s[3]}
}

// TestUpscaleEqualsComfyUI compares every recorded call in both layouts: float methods to 1e-6, lanczos, area and
// nearest-exact exactly. Bislerp of random vectors with 2 or 3 channels gets 1e-5, because some are nearly opposite and
// 1/sin magnifies the last bit of the angle.
func TestUpscaleEqualsComfyUI(t *testing.T) {
	bounds := map[string]float64{NearestExact: 0, Lanczos: 0, Bilinear: 1e-6, Bicubic: 1e-6, Area: 0, Bislerp: 1e-6}
	most, count := map[string]float64{}, map[string]int{}
	for _, g := range cases(t, "upscale") {
		in, want := image(t, g.in), image(t, g.out)
		if g.Method == Lanczos {
			for i := range want.Data {
				want.Data[i] /= 255
			}
		}
		for _, layout := range []Layout{ChannelsFirst, ChannelsLast} {
			// torch rounds the positions of channels-last inputs with more than 3 channels differently. All other
			// cases do not depend on the layout.
			if (layout == ChannelsLast) != (g.Layout == "last") &&
				(g.Method == NearestExact || g.Method == Bilinear) && in.C > 3 {
				continue
			}
			m := in
			if layout == ChannelsLast {
				m = turned(in)
			}
			before := slices.Clone(m.Data)
			got, err := Upscale(m, g.Width, g.Height, g.Method, g.Crop)
			if err != nil {
				t.Errorf("%v: %v", g, err)
				continue
			}
			if !slices.Equal(before, m.Data) {
				t.Errorf("%v: the input was changed", g)
			}
			if layout == ChannelsLast {
				got = turned(got)
			}
			if got.B != want.B || got.C != want.C || got.Y != want.Y || got.X != want.X {
				t.Errorf("%v: shape [%d %d %d %d], want [%d %d %d %d]", g, got.B, got.C, got.Y, got.X, want.B,
					want.C, want.Y, want.X)
				continue
			}
			d, at := worst(got.Data, want.Data)
			count[g.Method]++
			bound := bounds[g.Method]
			if g.Method == Bislerp && in.C < 4 {
				bound = 1e-5
			} else {
				most[g.Method] = max(most[g.Method], d)
			}
			if d > bound {
				t.Errorf("%v: element %d is %g, want %g, error %.3g, bound %g", g, at, got.Data[at], want.Data[at], d, bound)
			}
		}
	}
	for method := range bounds {
		t.Logf("%-13s %3d comparisons, largest error %.3g", method, count[method], most[method])
		if count[method] < 20 {
			t.Errorf("%s: only %d comparisons", method, count[method])
		}
	}
}

func TestMasksEqualComfyUI(t *testing.T) {
	for _, op := range []string{"grow", "feather"} {
		all := cases(t, op)
		if len(all) < 20 {
			t.Errorf("%s: only %d cases", op, len(all))
		}
		for _, g := range all {
			s, in, want := g.in.Shape, values(t, g.in), values(t, g.out)
			var out []float32
			if op == "grow" {
				out = Grow(in, s[0], s[1], s[2], g.Expand, g.Tapered)
			} else {
				out = Feather(in, s[0], s[1], s[2], g.Edges[0], g.Edges[1], g.Edges[2], g.Edges[3])
			}
			if d, at := worst(out, want); len(out) != len(want) || d > 0 {
				t.Errorf("%v: element %d is %g, want %g", g, at, out[at], want[at])
			}
			if !slices.Equal(in, values(t, g.in)) {
				t.Errorf("%v: the input was changed", g)
			}
		}
	}
}

// TestSplitDoesNotChangeResults resizes an image large enough for several goroutines and compares it with parts resized
// separately.
func TestSplitDoesNotChangeResults(t *testing.T) {
	const c, y, x = 3, 150, 170
	m := Image{B: 2, C: c, Y: y, X: x, Data: make([]float32, 2*c*y*x)}
	for i := range m.Data {
		m.Data[i] = float32(i*7919%1009) / 1009
	}
	second := m
	second.B, second.Data = 1, m.Data[c*y*x:]
	for _, method := range []string{NearestExact, Bilinear, Bicubic, Area, Lanczos, Bislerp} {
		for _, size := range [][2]int{{301, 211}, {61, 80}} {
			all, err := Upscale(m, size[0], size[1], method, CropDisabled)
			if err != nil {
				t.Fatal(err)
			}
			one, err := Upscale(second, size[0], size[1], method, CropDisabled)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(one.Data, all.Data[len(one.Data):]) {
				t.Errorf("%s to %v: the second picture of a batch differs from the picture alone", method, size)
			}
		}
	}
	calls := make([]int, 1000)
	split(len(calls), grain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			calls[i]++
		}
	})
	if slices.Min(calls) != 1 || slices.Max(calls) != 1 {
		t.Errorf("split: items were visited %d to %d times, want once", slices.Min(calls), slices.Max(calls))
	}
	defer func() {
		if recover() != "inside" {
			t.Error("a panic inside split must come out of it")
		}
	}()
	split(64, grain, func(lo, _ int) {
		if lo == 0 {
			panic("inside")
		}
	})
}

func TestWrongArgumentsAreRefusedWithTheReason(t *testing.T) {
	ok := Image{Data: make([]float32, 5*4*3), B: 1, C: 5, Y: 4, X: 3}
	thin := Image{Data: make([]float32, 100), B: 1, C: 1, Y: 1, X: 100}
	for _, c := range []struct {
		want          string
		m             Image
		width, height int
		method        string
		crop          string
	}{
		{"no picture", Image{}, 1, 1, Bilinear, CropDisabled},
		{"no picture", Image{Data: make([]float32, 3), B: 1, C: 1, Y: 2, X: 2}, 1, 1, Bilinear, CropDisabled},
		{"at least 1", ok, 0, 4, Bilinear, CropDisabled},
		{"at least 1", ok, 4, -1, Bilinear, CropDisabled},
		{"at most 4294967296", ok, math.MaxInt, math.MaxInt, Bilinear, CropDisabled},
		{"unknown crop \"middle\" (allowed: disabled, center)", ok, 2, 2, Bilinear, "middle"},
		{"unknown method \"nearest\" (allowed: nearest-exact,", ok, 2, 2, "nearest", CropDisabled},
		{"1 to 4 channels, not on 5", ok, 2, 2, Lanczos, CropDisabled},
		{"leaves nothing", thin, 1, 100, Bilinear, CropCenter},
	} {
		if _, err := Upscale(c.m, c.width, c.height, c.method, c.crop); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d x %d %s %s: got error %v, want one with %q", c.width, c.height, c.method, c.crop, err, c.want)
		}
	}
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "[1, 2, 3]") {
			t.Errorf("Grow of a wrong size: got panic %v, want one with the sizes", r)
		}
	}()
	Grow(make([]float32, 5), 1, 2, 3, 1, true)
}

// TestOneChannelLanczos checks what ComfyUI cannot do: a mask is filtered like each color channel of an image.
func TestOneChannelLanczos(t *testing.T) {
	v := make([]float32, 9*7)
	for i := range v {
		v[i] = float32(i*37%64) / 64
	}
	one, err := Upscale(Image{Data: v, B: 1, C: 1, Y: 9, X: 7}, 16, 5, Lanczos, CropDisabled)
	if err != nil {
		t.Fatal(err)
	}
	three, err := Upscale(Image{Data: slices.Concat(v, v, v), B: 1, C: 3, Y: 9, X: 7}, 16, 5, Lanczos, CropDisabled)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(three.Data, slices.Concat(one.Data, one.Data, one.Data)) {
		t.Error("lanczos of one channel differs from each of three equal channels")
	}
}

// BenchmarkUpscale doubles an image of 1024 x 1024 pixels. It counts the bytes of the result.
func BenchmarkUpscale(b *testing.B) {
	m := Image{B: 1, C: 3, Y: 1024, X: 1024, Layout: ChannelsLast, Data: make([]float32, 3<<20)}
	for i := range m.Data {
		m.Data[i] = float32(i*7919%1009) / 1009
	}
	for _, method := range []string{NearestExact, Bilinear, Bicubic, Area, Lanczos, Bislerp} {
		b.Run(method, func(b *testing.B) {
			b.SetBytes(4 * 3 << 22)
			for b.Loop() {
				if _, err := Upscale(m, 2048, 2048, method, CropDisabled); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGrow(b *testing.B) {
	v := make([]float32, 1<<20)
	for i := range v {
		v[i] = float32(i*7919%1009) / 1009
	}
	for b.Loop() {
		Grow(v, 1, 1024, 1024, 10, true)
	}
}

// TestNearestEqualsTorch compares with torch.nn.functional.interpolate of 0 .. from-1 in mode nearest.
func TestNearestEqualsTorch(t *testing.T) {
	for size, want := range map[[2]int][]float32{
		{14, 6}: {0, 2, 4, 7, 9, 11},
		{9, 8}:  {0, 1, 2, 3, 4, 5, 6, 7},
		{50, 6}: {0, 8, 16, 25, 33, 41},
		{3, 7}:  {0, 0, 0, 1, 1, 2, 2},
		{7, 3}:  {0, 2, 4},
	} {
		m := Image{B: 1, C: 1, Y: 1, X: size[0]}
		for i := range size[0] {
			m.Data = append(m.Data, float32(i))
		}
		got, err := Upscale(m, size[1], 1, Nearest, CropDisabled)
		if err != nil || !slices.Equal(got.Data, want) {
			t.Errorf("%v: got %v (%v), want %v", size, got.Data, err, want)
		}
	}
}
