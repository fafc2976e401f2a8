package minimaxh3

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights/goldenweights"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"h3-b", "h3-a"},
		Open:   goldenrun.Of(Family()),
		States: func(spec *dit.Spec, i int, x []float32, rows dit.Rows) map[string][]float32 {
			return map[string][]float32{fmt.Sprintf("blocks.%d", i): slices.Concat(recorded(x, spec.Width, rows)...)}
		},
	}
}

// recorded returns rows in ComfyUI's order, in which the sound precedes the video. Cases with recorded states have
// videos of as many tokens as theirs here.
func recorded[T any](x []T, wide int, rows dit.Rows) [][]T {
	lt, li := rows.Text.Len(), rows.Image.Len()
	videos := map[int]int{11 + 40: 24, 9 + 34: 18}[lt+li]
	cut := func(lo, hi int) []T { return x[lo*wide : hi*wide] }
	return [][]T{cut(0, lt), cut(lt+videos, lt+li), cut(lt, lt+videos)}
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

// TestSpots compares the position of every token with the recorded one.
func TestSpots(t *testing.T) {
	f, err := goldenweights.OpenResults()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, name := range goldens().Models {
		cases, err := goldenweights.Cases(name)
		if err != nil {
			t.Fatal(err)
		}
		d, err := Family().Releases[0].Config.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			e, g := c.Entries()[0], c.Grid(&d.Spec)
			got := spots(&d.Spec, &e, g)
			lt := len(got) - g.Tokens()
			got = slices.Concat(got[:lt], got[lt+g.Y*g.X:], got[lt:lt+g.Y*g.X])
			want, _, err := f.Get(c.Name + "#position_ids")
			if err != nil {
				t.Fatal(err)
			}
			if len(want) != axes*len(got) {
				t.Fatalf("%s: %d positions, want %d", c.Name, len(got), len(want)/axes)
			}
			for i, w := range want {
				if v := got[i/axes][i%axes]; !(math.Abs(v-float64(w)) <= 1e-6*max(1, math.Abs(v))) {
					t.Fatalf("%s: token %d is at %v, want %v", c.Name, i/axes, got[i/axes], want[i/axes*axes:][:axes])
				}
			}
		}
	}
}

// TestSoundThatOutlastsItsVideo checks that what follows a video with a longer sound begins at the end of the sound,
// and that the sound begins with the video, at the sides of its frames.
func TestSoundThatOutlastsItsVideo(t *testing.T) {
	d, err := Family().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	e := dit.Entry{Context: dit.Array{Rows: 3}, References: []dit.Reference{
		{Y: 2, X: 12, Condition: dit.Condition{Sound: true, Joined: true}},
		{Y: 4, X: 8, Condition: dit.Condition{T: 2}},
		{Y: 2, X: 2},
	}}
	got := spots(&d.Spec, &e, d.Spec.WithSound(d.Spec.FrameTokens(2, 4, 2), 2, 5))
	_, x := sides(d.Spec.FrameTokens(2, 4, 8))
	for row, want := range map[int]spot{
		3: {3, 0, x[0]}, 26: {14, 0, x[3]}, 27: {3, 8, x[0]}, 31: {3 + 5./3, 8, x[0]}, 35: {15, 0, 0}, 36: {16, 0, 0},
	} {
		if got[row] != want {
			t.Errorf("row %d is at %v, want %v", row, got[row], want)
		}
	}
}
