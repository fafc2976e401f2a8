package tile

import (
	"math"
	"testing"
)

// TestTwoTilesBlendAsInComfyUI checks a row of 6 cut into tiles of 4 that overlap by 2. ComfyUI's tiled_scale_multidim
// begins them at range(0, 6-2, 4-2), so at 0 and 2, and weighs each by 1/2, 1, 1, 1/2. Tiles that hold their number,
// 0 and 1, blend to (1/2)/(3/2) and 1/(3/2) where both are.
func TestTwoTilesBlendAsInComfyUI(t *testing.T) {
	tiles := 0
	number := func(tile []float32, ty, tx int, _ func(done, total int) error) ([]float32, error) {
		if ty != 1 || tx != 4 {
			t.Errorf("tile %d has %d rows and %d columns, want 1 and 4", tiles, ty, tx)
		}
		out := make([]float32, len(tile))
		for i := range out {
			out[i] = float32(tiles)
		}
		tiles++
		return out, nil
	}
	grid := Grid{C: 1, Out: 1, Y: 1, X: 6, Up: 1}
	got, err := grid.Pass(Size{Y: 1, X: 4, Overlap: 2}, nil, number, make([]float32, 6))
	if err != nil || tiles != 2 || len(got) != 6 {
		t.Fatalf("got %v, %v from %d tiles, want 6 values from 2 tiles", got, err, tiles)
	}
	for i, want := range []float64{0, 0, 1. / 3, 2. / 3, 1, 1} {
		if d := math.Abs(float64(got[i]) - want); !(d < 1e-6) {
			t.Errorf("column %d is %v, want %v", i, got[i], want)
		}
	}
}
