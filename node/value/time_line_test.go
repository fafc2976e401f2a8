package value

import (
	"strings"
	"testing"

	"patchbay/models/sampling"
)

// TestHostsNameTheTimeLineOfTheFile checks that a continuous time line is taken from a file that has one, and that no
// other is taken for it.
func TestHostsNameTheTimeLineOfTheFile(t *testing.T) {
	ofFile, err := new(sampling.ModelSampling).Continuous(sampling.EDM, 0.002, 80)
	if err != nil {
		t.Fatal(err)
	}
	own := TimeLine{Bases: []string{"ModelSamplingContinuousEDM", "EDM"}}
	if got, err := own.build(ofFile); err != nil || got != ofFile {
		t.Errorf("got %v, %v, want that of the file", got, err)
	}
	for _, bases := range [][]string{{"ModelSamplingDiscrete", "EPS"}, {"ModelSamplingContinuousEDM", "EPS"}, {}} {
		_, err := (&TimeLine{Bases: bases}).build(ofFile)
		if err == nil || !strings.Contains(err.Error(), "with ModelSamplingContinuousEDM and EDM only") {
			t.Errorf("%v: got %v", bases, err)
		}
	}
	eps, err := new(sampling.ModelSampling).Discrete(sampling.Eps, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := own.build(eps); err == nil || !strings.Contains(err.Error(), "is not known") {
		t.Errorf("%v over a discrete one: got %v, %v", own.Bases, got, err)
	}
}
