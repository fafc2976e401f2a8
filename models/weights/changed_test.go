package weights

import (
	"math"
	"strings"
	"testing"

	"patchbay/engine"
)

// counting returns a matrix of 1, 2, 3 ... in dtype, whose elements are in memory or, with made, computed on demand.
func counting(dtype engine.DType, n, k int, made bool) Stored {
	v := make([]float32, n*k)
	for i := range v {
		v[i] = float32(i + 1)
	}
	s := Stored{DType: dtype, Shape: []int{n, k}, Data: make([]byte, n*k*dtype.Size())}
	engine.Narrow(s.Data, v, dtype)
	if data := s.Data; made {
		s.Data = nil
		s.make = func(dst []byte, lo, hi int) { copy(dst, data[lo*dtype.Size():hi*dtype.Size()]) }
	}
	return s
}

// TestWidenedReadsAnyRange reads every range of a matrix with added columns into memory that held something else.
func TestWidenedReadsAnyRange(t *testing.T) {
	for _, dtype := range []engine.DType{engine.F32, engine.BF16, engine.F8E4M3} {
		for _, made := range []bool{false, true} {
			const n, k, wide = 3, 4, 7
			s := counting(dtype, n, k, made)
			s.Scale = 2
			w, err := s.withColumns(wide)
			if err != nil {
				t.Fatal(err)
			}
			for lo := range n * wide {
				for hi := lo + 1; hi <= n*wide; hi++ {
					scratch := []byte(strings.Repeat("\x7f", n*wide*4))
					got := make([]float32, hi-lo)
					engine.Widen(got, w.elements(&scratch, lo, hi), dtype)
					for i, v := range got {
						row, col, want := (lo+i)/wide, (lo+i)%wide, float32(0)
						if col < k {
							want = float32(row*k + col + 1)
						}
						if v != want {
							t.Fatalf("%s made %v [%d, %d): element %d is %v, want %v", dtype, made, lo, hi, i, v, want)
						}
					}
				}
			}
			if v := w.F32(); v[wide] != 2*(k+1) || v[k] != 0 || w.Bytes() != int64(n*wide*dtype.Size()) {
				t.Errorf("%s: widened to %v of %d bytes", dtype, v, w.Bytes())
			}
		}
	}
	rows := Stored{
		DType: engine.I8, Shape: []int{2, 4}, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}, Scales: []float32{0.5, 3},
	}
	w, err := rows.withColumns(6)
	if err != nil {
		t.Fatal(err)
	}
	if v := w.F32(); v[0] != 0.5 || v[4] != 0 || v[6] != 15 || v[11] != 0 {
		t.Errorf("int8 with factors of rows: %v", v)
	}
}

// TestChangesOfTensors checks that additions add up in order, that setting a tensor replaces it, and that the original
// set stays unchanged.
func TestChangesOfTensors(t *testing.T) {
	one := func(v ...float32) Stored {
		s := Stored{DType: engine.BF16, Shape: []int{len(v)}, Data: make([]byte, 2*len(v))}
		engine.Narrow(s.Data, v, engine.BF16)
		return s
	}
	set := FromMap(map[string]Stored{
		"a.bias": one(1, 2, 3), "n.weight": one(1, 1), "m.weight": counting(engine.F32, 2, 2, false),
	})
	out, err := set.Changed([]Change{
		{Name: "a.bias", Values: []float32{10, 20}, First: 1, Scale: 0.5},
		{Name: "a.bias", Values: []float32{1, 1, 1}, Scale: 1},
		{Name: "n.scale", Values: []float32{7, 8}, Set: true, Scale: 0.25},
		{Name: "m.weight", Columns: 3},
		{Name: "m.weight", Columns: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]float32{
		"a.bias": {2, 8, 14}, "n.weight": {7, 8}, "m.weight": {1, 2, 0, 3, 4, 0},
	} {
		s, _ := out.Get(name)
		got := s.F32()
		for i := range want {
			if len(got) != len(want) || got[i] != want[i] {
				t.Fatalf("%s is %v, want %v", name, got, want)
			}
		}
	}
	if s, _ := set.Get("a.bias"); s.F32()[1] != 2 || set.Dim("m.weight", 1) != 2 {
		t.Error("the set that was changed is another one now")
	}
	for want, c := range map[string]Change{
		"changes b.bias, which the model does not have": {Name: "b.bias"},
		"2 values from 2 on do not fit shape [3]":       {Name: "a.bias", Values: []float32{1, 1}, First: 2},
		"2 values from 0 on do not fit shape [3]":       {Name: "a.bias", Values: []float32{1, 1}, Set: true},
		"only small tensors":                            {Name: "m.weight", Values: []float32{1}},
		"shape [2 2] and cannot get 1 columns":          {Name: "m.weight", Columns: 1},
		"shape [3] and cannot get 4 columns":            {Name: "a.bias", Columns: 4},
	} {
		if _, err := set.Changed([]Change{c}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestRotatedRowsReadAnyRange reads every range of a rotated int8 matrix, also those that begin or end within a group,
// and compares with the product of each group with the matrix of the rotation: the Kronecker power of a regular
// Hadamard matrix of order 4.
func TestRotatedRowsReadAnyRange(t *testing.T) {
	const n, k, group = 3, 48, 16
	h := [4][4]float64{{1, 1, 1, -1}, {1, 1, -1, 1}, {1, -1, 1, 1}, {-1, 1, 1, 1}}
	s := Stored{
		DType: engine.I8, Shape: []int{n, k}, Data: make([]byte, n*k), Scales: []float32{0.5, 3, 0.125}, Rotated: group,
	}
	for i := range s.Data {
		s.Data[i] = byte(i*89 + i/11)
	}
	want := make([]float64, n*k)
	for i := range want {
		first := i / group * group
		for j := range group {
			r := h[i%group/4][j/4] * h[i%4][j%4] / 4
			want[i] += r * float64(int8(s.Data[first+j])) * float64(s.Scales[i/k])
		}
	}
	wide, err := s.withColumns(k + 5)
	if err != nil {
		t.Fatal(err)
	}
	for lo := range n * k {
		for hi := lo + 1; hi <= n*k; hi++ {
			got := make([]float32, hi-lo)
			s.wide(got, lo)
			for i, v := range got {
				if !(math.Abs(float64(v)-want[lo+i]) <= 1e-4) {
					t.Fatalf("[%d, %d): element %d is %v, want %v", lo, hi, lo+i, v, want[lo+i])
				}
			}
		}
		got := make([]float32, 1)
		wide.wide(got, lo/k*(k+5)+lo%k)
		if !(math.Abs(float64(got[0])-want[lo]) <= math.Abs(want[lo])/256) {
			t.Fatalf("widened: element %d is %v, want %v in bf16", lo, got[0], want[lo])
		}
	}
}
