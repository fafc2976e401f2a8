package sdxl

import (
	"encoding/json"
	"path"
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
		Models: []string{"sdxl-a", "sdxl-b", "sdxl-c", "sd15-a", "refiner-a"},
		Open: func(ops engine.Ops, set *weights.Set, meta map[string]string, held dit.Held) (dit.Model, error) {
			d, err := family.Open([]family.Family{Family(), SD1(), Refiner()}, set, meta)
			if err != nil {
				return nil, err
			}
			return d.Load(ops, held)
		},
		States: func(spec *dit.Spec, _ int, x []float32, _ dit.Rows) map[string][]float32 {
			last := map[string]string{xl: "output_blocks.8.0", sd15: "output_blocks.11.1", refiner: "output_blocks.11.0"}
			n := len(x) / spec.Width
			channels := make([]float32, 0, len(x))
			for c := range spec.Width {
				for i := range n {
					channels = append(channels, x[i*spec.Width+c])
				}
			}
			return map[string][]float32{last[spec.Family]: channels}
		},
	}
}

func TestForwardMatchesGolden(t *testing.T) { goldens().Forward(t) }
func TestForwardOnCPU(t *testing.T)         { goldens().Levels(t) }
func TestNothingIsReadEarly(t *testing.T)   { goldens().Deferred(t) }
func TestBatchAndSteps(t *testing.T)        { goldens().Batch(t) }
func TestMemoryIsMeasurable(t *testing.T)   { goldens().Measured(t) }
func TestHalfPrecision(t *testing.T)        { goldens().Half(t) }

// recordedNames returns a recorded table of names of a model, of which the last part of the key is the name.
func recordedNames(t *testing.T, name string) map[string]string {
	t.Helper()
	all := map[string]json.RawMessage{}
	if err := golden.JSON(goldenweights.Folder(path.Base(name))+"models.json", &all); err != nil {
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
