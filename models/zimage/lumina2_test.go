package zimage

import (
	"reflect"
	"strings"
	"testing"

	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

func luminas() goldenrun.Family {
	f := goldens()
	f.Models, f.Open = []string{"lumina2-a", "lumina2-b"}, goldenrun.Of(Lumina2())
	return f
}

func TestLumina2ForwardMatchesGolden(t *testing.T)        { luminas().Forward(t) }
func TestLumina2NothingIsReadEarly(t *testing.T)          { luminas().Deferred(t) }
func TestLumina2BlocksOfStagesEqualTheWhole(t *testing.T) { luminas().Stages(t) }
func TestLumina2SlicesSumToTheWhole(t *testing.T)         { luminas().Slices(t) }
func TestLumina2BatchAndSteps(t *testing.T)               { luminas().Batch(t) }
func TestLumina2MemoryIsMeasurable(t *testing.T)          { luminas().Measured(t) }
func TestLumina2HalfPrecision(t *testing.T)               { luminas().Half(t) }

// TestLumina2ReleasedSize counts the parameters of Lumina-Image 2.0 by hand: E=2304, F=9216, 8 key heads of size 96.
func TestLumina2ReleasedSize(t *testing.T) {
	d, err := Lumina2().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	const e, f, k, w = 2304, 9216, 8 * 96, 1024
	linear := func(n, k int) int64 { return int64(n)*int64(k) + int64(n) }
	plain := int64((e+2*k)*e+e*e+3*e*f) + 4*e + 2*96
	want := 2*plain + 28*(plain+linear(4*e, w)) + linear(e, 64) + linear(e, e) + e + linear(w, 256) + linear(w, w) +
		linear(e, w) + linear(64, e)
	if s := d.Spec; s.Params != want || s.Group() != 3 || s.Multiple != 0 || d.Sampling.Shift != 6 {
		t.Errorf("got %d parameters, groups of %d, multiple %d, shift %g; want %d, 3, 0, 6", s.Params, s.Group(), s.Multiple,
			d.Sampling.Shift, want)
	}
}

func TestLumina2DetectFindsTheConfig(t *testing.T) {
	want := Lumina2().Releases[0].Config.(Config)
	want.Depth = 3
	if got, err := Detect(weights.FromMap(shapes(t, want)), nil); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	odd := shapes(t, want)
	odd["layers.0.attention.qkv.weight"] = weights.Stored{Shape: []int{2304 + 2*7*96, 2304}}
	_, err := Detect(weights.FromMap(odd), nil)
	if err == nil || !strings.Contains(err.Error(), "24 heads of queries and 7") {
		t.Errorf("got error %v", err)
	}
}
