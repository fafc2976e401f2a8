package wan

import (
	"fmt"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"wan-t2v-b", "wan-i2v22-a", "wan-i2v22-b", "wan-i2v21-a", "wan-ti2v-a", "wan-t2v-a"},
		Open:   goldenrun.Of(Family()),
		States: func(_ *dit.Spec, i int, x []float32, _ dit.Rows) map[string][]float32 {
			return map[string][]float32{fmt.Sprintf("blocks.%d", i): x}
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
