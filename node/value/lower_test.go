package value

import (
	"slices"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/tiny"
	"patchbay/parallel"
)

// TestTellsTheWholePicture: PixArt-Alpha and HunyuanDiT hear the size of the picture also where an entry covers a part
// of it, or the size that CLIPTextEncodePixArtAlpha names.
func TestTellsTheWholePicture(t *testing.T) {
	latent := parallel.NewLatent(1, 4, 16, 24)
	for _, c := range []struct {
		family string
		pixels [2]int
		want   []float32
	}{
		{"hunyuandit", [2]int{}, []float32{128, 192, 128, 192, 0, 0}},
		{"hunyuandit", [2]int{512, 256}, []float32{512, 256, 512, 256, 0, 0}},
		{"pixart", [2]int{}, []float32{128, 192, 128. / 192}},
		{"pixart", [2]int{512, 256}, []float32{512, 256, 2}},
		{"flux", [2]int{512, 256}, nil},
	} {
		d, err := tiny.Describe(c.family)
		if err != nil {
			t.Fatal(err)
		}
		m, err := NewModel(c.family, c.family, d, 0, parallel.LoadFunc(d.Load))
		if err != nil {
			t.Fatal(err)
		}
		n := m.Spec.ContextDim
		b, err := m.branch(GuiderBranch{"positive", Conditioning{{
			Context: dit.Array{Rows: 1, Cols: n, Data: make([]float32, n)}, Area: parallel.Area{H: 8, W: 8}, Pixels: c.pixels,
		}}}, latent)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Entries[0].Size; !slices.Equal(got, c.want) {
			t.Errorf("%s told %v: size %v, want %v", c.family, c.pixels, got, c.want)
		}
	}
}
