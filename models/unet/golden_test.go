package unet

import (
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

// goldens has the state after the block for cases whose sides it knows.
func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"sdxl-a", "sdxl-b", "sdxl-c", "sd15-a"},
		Open: func(ops engine.Ops, set *weights.Set, meta map[string]string, held dit.Held) (dit.Model, error) {
			d, err := family.Open([]family.Family{XL(), One()}, set, meta)
			if err != nil {
				return nil, err
			}
			return d.Load(ops, held)
		},
		States: func(spec *dit.Spec, _ int, x []float32, _ dit.Rows) map[string][]float32 {
			last, n := "output_blocks.8.0", len(x)/spec.Width
			if spec.Family == "sd1" {
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
