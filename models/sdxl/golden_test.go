package sdxl

import (
	"encoding/json"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// goldens has the state after the block for cases whose sides it knows.
func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"sdxl-a", "sdxl-b", "sdxl-c", "sd15-a"},
		Open: func(ops engine.Ops, set *weights.Set, meta map[string]string, held dit.Held) (dit.Model, error) {
			d, err := family.Open([]family.Family{Family(), SD1()}, set, meta)
			if err != nil {
				return nil, err
			}
			return d.Load(ops, held)
		},
		States: func(spec *dit.Spec, _ int, x []float32, _ dit.Rows) map[string][]float32 {
			last, n := "output_blocks.8.0", len(x)/spec.Width
			if spec.Family == "sd15" {
				last = "output_blocks.11.1"
			}
			channels := make([]float32, 0, len(x))
			for c := range spec.Width {
				for i := range n {
					channels = append(channels, x[i*spec.Width+c])
				}
			}
			return map[string][]float32{last: channels}
		},
	}
}

func TestForwardMatchesGolden(t *testing.T) { goldens().Forward(t) }
func TestForwardOnCPU(t *testing.T)         { goldens().Levels(t) }
func TestNothingIsReadEarly(t *testing.T)   { goldens().Deferred(t) }
func TestBatchAndSteps(t *testing.T)        { goldens().Batch(t) }
func TestMemoryIsMeasurable(t *testing.T)   { goldens().Measured(t) }
func TestHalfPrecision(t *testing.T)        { goldens().Half(t) }

// recordedNames returns a recorded table of names.
func recordedNames(t *testing.T, name string) map[string]string {
	t.Helper()
	all := map[string]json.RawMessage{}
	if err := golden.JSON("sdxl/models.json", &all); err != nil {
		t.Fatal(err)
	}
	table := map[string]string{}
	if err := json.Unmarshal(all[name], &table); err != nil {
		t.Fatal(err)
	}
	return table
}

// goldenShapes returns the tensors of a golden model.
func goldenShapes(t *testing.T, name string) map[string]weights.Stored {
	t.Helper()
	set, _, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]weights.Stored{}
	for _, n := range set.Names() {
		m[n] = weights.Stored{Shape: set.Shape(n)}
	}
	return m
}
