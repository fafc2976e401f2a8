package flux

import (
	"reflect"
	"strings"
	"testing"

	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

func chromas() goldenrun.Family {
	f := goldens()
	f.Models, f.Open = []string{"chroma-a", "chroma-b"}, goldenrun.Of(Chroma())
	return f
}

func TestChromaForwardMatchesGolden(t *testing.T)        { chromas().Forward(t) }
func TestChromaNothingIsReadEarly(t *testing.T)          { chromas().Deferred(t) }
func TestChromaBlocksOfStagesEqualTheWhole(t *testing.T) { chromas().Stages(t) }
func TestChromaBatchAndSteps(t *testing.T)               { chromas().Batch(t) }
func TestChromaMemoryIsMeasurable(t *testing.T)          { chromas().Measured(t) }
func TestChromaHalfPrecision(t *testing.T)               { chromas().Half(t) }

// TestChromaReleasedSize counts the parameters of Chroma by hand: those of FLUX.1-schnell without its modulations and
// vectors, plus those of the network that computes the modulations.
func TestChromaReleasedSize(t *testing.T) {
	d, err := Chroma().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	const e, a = 3072, 5120
	linear := func(n, k int64) int64 { return n*k + n }
	want := int64(11891178560) - (2*19*linear(6*e, e) + 38*linear(3*e, e) + linear(2*e, e)) -
		(linear(e, 256) + linear(e, e)) - (linear(e, 768) + linear(e, e)) +
		linear(a, 64) + 5*(2*linear(a, a)+a) + linear(e, a)
	if s := d.Spec; s.Params != want || modulations(&s) != places || s.Family != "chroma" || !s.TakesGuidance {
		t.Errorf("got %d parameters and %d modulations of %s, want %d and %d", s.Params, modulations(&s), s.Family, want,
			places)
	}
}

func TestChromaDetectFindsTheConfig(t *testing.T) {
	hd := Chroma().Releases[0].Config.(Config)
	if got, err := Detect(shapes(t, hd, ""), nil); err != nil || !reflect.DeepEqual(got, hd) {
		t.Errorf("got %+v, %v; want %+v", got, err, hd)
	}
	wide, deep := hd, hd
	wide.Concat, deep.DepthSingle = 16, 39
	for want, c := range map[string]Config{"reads 32 channels": wide, "347 modulations, known are 344": deep} {
		if _, err := Detect(shapes(t, c, ""), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that says %q", err, want)
		}
	}
	other := map[string]weights.Stored{}
	for set, i := shapes(t, hd, ""), 0; i < len(set.Names()); i++ {
		other[set.Names()[i]], _ = set.Get(set.Names()[i])
	}
	other["distilled_guidance_layer.in_proj.weight"] = weights.Stored{Shape: []int{5120, 80}}
	if _, err := Detect(weights.FromMap(other), nil); err == nil || !strings.Contains(err.Error(), "80 columns, want 64") {
		t.Errorf("got error %v", err)
	}
}
