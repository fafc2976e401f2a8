package gguf

import (
	"bytes"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// TestRangesAreCutsOfTheWhole compares ranges at block borders, across them and inside blocks with the same bytes of
// the widened tensor.
func TestRangesAreCutsOfTheWhole(t *testing.T) {
	f := open(t, "types.gguf")
	for _, name := range f.Names() {
		e, _ := f.Entry(name)
		for _, d := range []engine.DType{engine.F32, engine.BF16, engine.F16} {
			whole, err := widened(e, d)
			if err != nil {
				t.Fatal(err)
			}
			n, size := e.Len(), d.Size()
			for _, r := range [][2]int{
				{0, n},
				{0, 0},
				{n, n},
				{0, 1},
				{n - 1, n},
				{n / 3, n/3 + 1},
				{n / 4, n / 2},
				{n/2 - 1, n},
				{min(31, n), min(33, n)},
				{min(255, n), n},
			} {
				got := make([]byte, (r[1]-r[0])*size)
				if err := e.Range(got, r[0], r[1], d); err != nil {
					t.Fatal(err)
				}
				if want := whole[r[0]*size : r[1]*size]; !bytes.Equal(got, want) {
					t.Errorf("%s as %s: elements %v differ from those of the whole", name, d, r)
				}
			}
		}
		for _, r := range [][2]int{{-1, 0}, {0, e.Len() + 1}, {1, 0}} {
			if err := e.Range(make([]byte, 4*e.Len()+4), r[0], r[1], engine.F32); err == nil {
				t.Errorf("%s: range %v of %d must be refused", name, r, e.Len())
			}
		}
		if err := e.Range(make([]byte, 1), 0, 1, engine.F32); err == nil {
			t.Errorf("%s: a destination that is too short must be refused", name)
		}
		if err := e.Range(make([]byte, 8), 0, 1, engine.F8E4M3); err == nil {
			t.Errorf("%s: fp8 must be refused", name)
		}
	}
	strange := Tensor{Name: "x", Type: 20, Shape: []int{32}, Data: datafile.Of(make([]byte, 18))}
	if err := strange.Range(make([]byte, 128), 0, 32,
		engine.F32); err == nil {
		t.Error("IQ4_NL must be refused")
	}
}
