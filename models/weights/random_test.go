package weights

import (
	"math"
	"slices"
	"testing"
)

// TestRandomNumbers checks that tensors have their shapes and hold numbers below 1/32, that rows differ, and that a
// range equals the same range of the whole tensor.
func TestRandomNumbers(t *testing.T) {
	set := Random([]Declared{{Name: "a", Shape: []int{300, 256}}, {Name: "b", Shape: []int{7}}})
	a, _ := set.Get("a")
	b, _ := set.Get("b")
	whole := a.Elements(0, a.Len())
	if !slices.Equal(a.Shape, []int{300, 256}) || len(b.Elements(0, 7)) != 14 ||
		!slices.Equal(a.Elements(65000, 66000), whole[130000:132000]) {
		t.Errorf("shape %v, or a piece is not that of the whole", a.Shape)
	}
	v, sum := a.F32(), 0.0
	for _, x := range v {
		if !(math.Abs(float64(x)) <= 1.0/32) {
			t.Fatalf("a number is %g", x)
		}
		sum += float64(x) * float64(x)
	}
	if rms := math.Sqrt(sum / float64(len(v))); !(math.Abs(rms*32*math.Sqrt(3)-1) <= 0.02) { // uniform distribution
		t.Errorf("root mean square %g", rms)
	}
	if slices.Equal(v[:256], v[256:512]) || slices.Equal(v[:256], v[256*257:256*258]) {
		t.Error("rows are equal")
	}
}
