package krea2

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"krea2-a", "krea2-b"},
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

// TestPositions compares the position of every token with ComfyUI's, where references come after the image.
func TestPositions(t *testing.T) {
	goldens().Positions(t, func(m dit.Model, c goldenrun.Case) [][]float32 {
		spec, e := m.Spec(), c.Entries()[0]
		at := m.(*Model).positions(&e, spec.Tokens(c.X[2], c.X[3]))
		textRows, lt := e.Context.Rows, spec.JointTokens(&e)
		var three [][3]int
		for _, p := range slices.Concat(at[:textRows], at[lt:], at[textRows:lt]) {
			three = append(three, [3]int(p[:3]))
		}
		return goldenrun.Axes(three)
	})
}
