package zimage

import (
	"fmt"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"zimage-a", "zimage-b"},
		Open:   goldenrun.Of(Family()),
		States: func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32 {
			refiners := 0
			for spec.Blocks[refiners].Kind == dit.Cross {
				refiners++
			}
			if i >= refiners {
				return map[string][]float32{fmt.Sprintf("layers.%d", i-refiners): x}
			}
			text := x[:rows.Text.Len()*spec.Width]
			return map[string][]float32{
				fmt.Sprintf("context_refiner.%d", refiners-1): text,
				fmt.Sprintf("noise_refiner.%d", i):            x[len(text):],
			}
		},
	}
}

func TestForwardMatchesGolden(t *testing.T)        { goldens().Forward(t) }
func TestForwardOnCPU(t *testing.T)                { goldens().Levels(t) }
func TestNothingIsReadEarly(t *testing.T)          { goldens().Deferred(t) }
func TestRowsOfPartsEqualTheWhole(t *testing.T)    { goldens().Rows(t) }
func TestBlocksOfStagesEqualTheWhole(t *testing.T) { goldens().Stages(t) }
func TestSlicesSumToTheWhole(t *testing.T)         { goldens().Slices(t) }
func TestBatchAndSteps(t *testing.T)               { goldens().Batch(t) }
func TestMemoryIsMeasurable(t *testing.T)          { goldens().Measured(t) }
func TestHalfPrecision(t *testing.T)               { goldens().Half(t) }
