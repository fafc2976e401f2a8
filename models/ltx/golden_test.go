package ltx

import (
	"fmt"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"ltx-b", "ltx-c", "ltx-a"},
		Open:   goldenrun.Of(Family()),
		States: func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32 {
			video := rows.Len() * spec.Width
			return map[string][]float32{
				fmt.Sprintf("transformer_blocks.%d.0", i): x[:video], fmt.Sprintf("transformer_blocks.%d.1", i): x[video:],
			}
		},
	}
}

func TestForwardMatchesGolden(t *testing.T)        { goldens().Forward(t) }
func TestForwardOnCPU(t *testing.T)                { goldens().Levels(t) }
func TestNothingIsReadEarly(t *testing.T)          { goldens().Deferred(t) }
func TestRowsOfPartsEqualTheWhole(t *testing.T)    { goldens().Rows(t) }
func TestBlocksOfStagesEqualTheWhole(t *testing.T) { goldens().Stages(t) }
func TestBatchAndSteps(t *testing.T)               { goldens().Batch(t) }
func TestMemoryIsMeasurable(t *testing.T)          { goldens().Measured(t) }
func TestHalfPrecision(t *testing.T)               { goldens().Half(t) }
