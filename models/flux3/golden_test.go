package flux3

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights/goldenweights"
)

// texts is how many rows of text precede the references in a case, by the number of tokens in front of the image.
func texts(spec *dit.Spec, joint int) int {
	for _, name := range goldens().Models {
		cases, err := goldenweights.Cases(name)
		if err != nil {
			panic(err)
		}
		for _, c := range cases {
			if e := c.Entries()[0]; e.Context.Cols == spec.ContextDim && spec.JointTokens(&e) == joint {
				return e.Context.Rows
			}
		}
	}
	return 0
}

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"f3-a", "f3-b", "f3-c", "f3-d"},
		Open:   goldenrun.Of(Family()),
		States: func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32 {
			depth := 0
			for spec.Blocks[depth].Kind == dit.Cross {
				depth++
			}
			joint, lt := rows.Text.Len(), texts(spec, rows.Text.Len())
			text, refs, image := x[:lt*spec.Width], x[lt*spec.Width:joint*spec.Width], x[joint*spec.Width:]
			if i >= depth {
				name := fmt.Sprintf("single_blocks.%d.", i-depth)
				return map[string][]float32{name + "0": text, name + "1": slices.Concat(image, refs)}
			}
			out := map[string][]float32{
				fmt.Sprintf("txt_mode_blocks.%d", depth-1):     text,
				fmt.Sprintf("content_mode_blocks.image.%d", i): image,
			}
			if len(refs) > 0 {
				out[fmt.Sprintf("content_mode_blocks.image_cond.%d", depth-1)] = refs
			}
			return out
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

// TestPositions compares the position of every token with the recorded one, where references come after the image.
func TestPositions(t *testing.T) {
	goldens().Positions(t, func(m dit.Model, c goldenrun.Case) [][]float32 {
		spec, e := m.Spec(), c.Entries()[0]
		at := m.(*Model).halves(&e, spec.Tokens(c.X[2], c.X[3]))
		textRows, lt := e.Context.Rows, spec.JointTokens(&e)
		out := goldenrun.Axes(slices.Concat(at[:textRows], at[lt:], at[textRows:lt]))
		for _, axes := range out {
			for a := range axes {
				axes[a] /= 2
			}
		}
		return out
	})
}
