package flux2

import (
	"fmt"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"flux2-a", "flux2-b", "klein-a"},
		Open:   goldenrun.Of(Family()),
		States: func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32 {
			cut, depth := rows.Text.Len()*spec.Width, 0
			for spec.Blocks[depth].Kind == dit.Double {
				depth++
			}
			if i >= depth {
				return map[string][]float32{fmt.Sprintf("single_blocks.%d", i-depth): x}
			}
			return map[string][]float32{
				fmt.Sprintf("double_blocks.%d.0", i): x[cut:],
				fmt.Sprintf("double_blocks.%d.1", i): x[:cut],
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
