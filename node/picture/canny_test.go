package picture

import (
	"testing"

	"patchbay/tests/golden"
)

// TestEdgesEqualComfyUIs compares every edge pixel with ComfyUI 0.33.0's (kornia 0.9.0), on noise and on shapes with
// steps where neighboring pixels have equal gradients.
func TestEdgesEqualComfyUIs(t *testing.T) {
	var recorded golden.Pictures
	if err := golden.JSON("pictures.json", &recorded); err != nil {
		t.Fatal(err)
	}
	if len(recorded.Edges) < 8 {
		t.Fatalf("%d recorded pictures, want 8", len(recorded.Edges))
	}
	for _, c := range recorded.Edges {
		b, y, x := c.Shape[0], c.Shape[1], c.Shape[2]
		im := &Image{B: b, Y: y, X: x, C: 3, Data: golden.Picture(c.Picture, b, y, x)}
		got := Canny(im, float32(c.Low), float32(c.High))
		wrong, white := 0, 0
		for i, v := range got.Data {
			want := float32(c.Edges[i/3/8] >> (7 - i/3%8) & 1)
			if v != want {
				wrong++
			}
			if v == 1 && i%3 == 0 {
				white++
			}
		}
		if got.B != b || got.Y != y || got.X != x || got.C != 3 || len(got.Data) != 3*b*y*x || wrong > 0 || white != c.White {
			t.Errorf("%s %v, thresholds %v and %v: %d values of [%d, %d, %d, %d], %d of them wrong; %d white pixels, want %d",
				c.Picture, c.Shape, c.Low, c.High, len(got.Data), got.B, got.Y, got.X, got.C, wrong, white, c.White)
		}
	}
}
