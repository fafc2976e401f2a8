package goldenrun

import (
	"slices"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/weights/goldenweights"
)

// Positions compares the position of every token with the one ComfyUI recorded, which is the same in all items of a
// batch. at returns the axes of every token of a case, in ComfyUI's order of tokens.
func (f Family) Positions(t *testing.T, at func(m dit.Model, c Case) [][]float32) {
	file, err := goldenweights.OpenResults()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	f.each(t, func(t *testing.T, name string, c Case) {
		m := f.load(t, ref.New(), name, dit.Held{Blocks: []dit.Range{}})
		want, shape, err := file.Get(c.Name + "#position_ids")
		if err != nil {
			t.Fatal(err)
		}
		got := at(m, c)
		tokens := shape[len(shape)-2]
		if len(got) != tokens || !slices.Equal(slices.Repeat(slices.Concat(got...), len(want)/len(got)/len(got[0])), want) {
			t.Errorf("%d tokens at %v, want %d at %v", len(got), got, tokens, want)
		}
	})
}

// Axes converts positions to the form that Positions expects.
func Axes[A ~[3]int | ~[4]int](at []A) [][]float32 {
	out := make([][]float32, len(at))
	for row, axes := range at {
		for a := range len(axes) {
			out[row] = append(out[row], float32(axes[a]))
		}
	}
	return out
}
