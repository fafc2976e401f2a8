package qwenimage

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
)

// ownText maps the number of rows before the image to that of text rows among them, for the cases that have states.
var ownText = map[int]int{13: 13, 9 + 12: 9, 11 + 35: 11}

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"qwen-a", "qwen-b", "qwen-c"},
		Open:   goldenrun.Of(Family()),
		States: func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32 {
			cut, text := rows.Text.Len()*spec.Width, ownText[rows.Text.Len()]*spec.Width
			return map[string][]float32{
				fmt.Sprintf("transformer_blocks.%d.0", i): x[:text],
				fmt.Sprintf("transformer_blocks.%d.1", i): slices.Concat(x[cut:], x[text:cut]), // references last
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
