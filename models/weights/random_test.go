package weights

import (
	"math"
	"slices"
	"testing"
)

// TestRandomNumbers: tensors have their shapes, share one memory, and hold different numbers below 1/32 whose rows
// differ.
func TestRandomNumbers(t *testing.T) {
	set := Random([]Declared{{Name: "a", Shape: []int{300, 256}}, {Name: "b", Shape: []int{7}}})
	a, _ := set.Get("a")
	b, _ := set.Get("b")
	if !slices.Equal(a.Shape, []int{300, 256}) || len(b.Data) != 14 || &a.Data[0] != &b.Data[0] {
		t.Errorf("shape %v, %d bytes of b", a.Shape, len(b.Data))
	}
	v, sum := a.F32(), 0.0
	for _, x := range v {
		if !(math.Abs(float64(x)) <= 1.0/32) {
			t.Fatalf("a number is %g", x)
		}
		sum += float64(x) * float64(x)
	}
	if rms := math.Sqrt(sum / float64(len(v))); math.Abs(rms*32*math.Sqrt(3)-1) > 0.02 { // of a uniform distribution
		t.Errorf("root mean square %g", rms)
	}
	if slices.Equal(v[:256], v[256:512]) || slices.Equal(v[:256], v[256*257:256*258]) {
		t.Error("rows are equal")
	}
}
