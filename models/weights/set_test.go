package weights

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
)

func TestSetViews(t *testing.T) {
	s := FromMap(map[string]Stored{
		"m.list.0.a": f32(0, 2, 3), "m.list.1.a": f32(0, 1), "m.list.10.a": f32(0, 1),
		"m.list.2.a": f32(0, 1), "x": f32(0, 4),
	})
	m := s.Prefix("m.")
	if want := []string{"list.0.a", "list.1.a", "list.10.a", "list.2.a"}; !slices.Equal(m.Names(), want) {
		t.Errorf("names under m.: got %v, want %v", m.Names(), want)
	}
	if got := m.Count("list"); got != 3 {
		t.Errorf("length of the list 0, 1, 2, 10: got %d, want 3", got)
	}
	if m.Dim("list.0.a", 1) != 3 || m.Dim("list.0.a", 2) != 0 || m.Dim("x", 0) != 0 || !s.Has("x") {
		t.Errorf("dimensions: got %d %d %d", m.Dim("list.0.a", 1), m.Dim("list.0.a", 2), m.Dim("x", 0))
	}
}

// TestForBF16 checks that f32 matrices are read as bf16, in any range and across the chunks of the conversion, and that
// vectors and narrower types stay as they are.
func TestForBF16(t *testing.T) {
	const n, k = 3, wideChunk/2 + 5
	values := make([]float32, n*k)
	for i := range values {
		values[i] = float32(math.Sin(float64(i)))
	}
	stored := func(d engine.DType, v []float32, shape ...int) Stored {
		data := make([]byte, len(v)*d.Size())
		engine.Narrow(data, v, d)
		return Stored{DType: d, Shape: shape, Data: data}
	}
	s := FromMap(map[string]Stored{
		"m": stored(engine.F32, values, n, k), "v": stored(engine.F32, values[:7], 7),
		"h": stored(engine.F16, values[:6], 2, 3),
	}).For(engine.BF16)
	want := make([]byte, 2*len(values))
	engine.Narrow(want, values, engine.BF16)
	m, _ := s.Get("m")
	for _, r := range [][2]int{{0, n * k}, {11, n*k - 3}, {n*k - 1, n * k}} {
		if got := m.Elements(r[0], r[1]); m.DType != engine.BF16 || !bytes.Equal(got, want[2*r[0]:2*r[1]]) {
			t.Errorf("elements %v of %s: not those of bf16", r, m.DType)
		}
	}
	for name, d := range map[string]engine.DType{"v": engine.F32, "h": engine.F16} {
		if got, _ := s.Get(name); got.DType != d || got.Data == nil {
			t.Errorf("%s became %s", name, got.DType)
		}
	}
}

func TestScaledFP8JoinsItsFactor(t *testing.T) {
	w := Stored{DType: engine.F8E4M3, Shape: []int{1, 2}, Data: make([]byte, 2)}
	engine.Narrow(w.Data, []float32{2, -4}, engine.F8E4M3)
	s := FromMap(map[string]Stored{
		"a.weight": w, "a.scale_weight": f32(0.5), "a.scale_input": f32(1), "scaled_fp8": f32(0, 2),
		"lost.scale_weight": f32(1),
	})
	if want := []string{"a.weight", "lost.scale_weight"}; !slices.Equal(s.Names(), want) {
		t.Errorf("names: got %v, want %v", s.Names(), want)
	}
	got, _ := s.Get("a.weight")
	if v := got.F32(); !slices.Equal(v, []float32{1, -2}) {
		t.Errorf("values times 0.5: got %v, want [1 -2]", v)
	}
}

func TestFromFileReadsWhatWasWritten(t *testing.T) {
	var file bytes.Buffer
	a := f32(3, 2, 2)
	if err := safetensors.Write(&file, nil, []safetensors.Tensor{{
		Name: "a", DType: a.DType, Shape: a.Shape,
		Data: datafile.Of(a.Data),
	}}); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.OpenBytes(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, ok := FromFile(f).Get("a")
	if v := got.F32(); !ok || !slices.Equal(v, []float32{3, 4, 5, 6}) {
		t.Errorf("tensor a: got %v, want [3 4 5 6]", v)
	}
}
