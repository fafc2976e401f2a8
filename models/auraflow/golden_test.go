package auraflow

import (
	"fmt"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/tests/golden"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"aura-a", "aura-b"},
		Open:   goldenrun.Of(Family()),
		States: func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32 {
			depth := 0
			for spec.Blocks[depth].Kind == dit.Double {
				depth++
			}
			if i >= depth {
				return map[string][]float32{fmt.Sprintf("single_layers.%d", i-depth): x}
			}
			lt := rows.Text.Len() * spec.Width
			return map[string][]float32{
				fmt.Sprintf("double_layers.%d.0", i): x[:lt],
				fmt.Sprintf("double_layers.%d.1", i): x[lt:],
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

// TestLargerPicturesAreRecorded checks that the forward cases include images with more rows or columns than the
// position table, whose positions ComfyUI interpolates between the table's entries over a wider square.
func TestLargerPicturesAreRecorded(t *testing.T) {
	var runs map[string]struct {
		X []int `json:"x"`
	}
	if err := golden.JSON("modern/models.json", &runs); err != nil {
		t.Fatal(err)
	}
	larger := map[string]int{}
	for name, edge := range map[string]int{"aura-a": 5, "aura-b": 8} {
		for run, r := range runs {
			if strings.HasPrefix(run, name+"/") && max(r.X[2]+1, r.X[3]+1)/2 > edge {
				larger[name]++
			}
		}
	}
	if larger["aura-a"] < 3 || larger["aura-b"] < 1 {
		t.Errorf("recorded forwards larger than the table: %v, want 3 of aura-a and one of aura-b", larger)
	}
}
