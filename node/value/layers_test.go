package value

import (
	"bytes"
	"testing"

	"patchbay/models/latent"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// TestPreviewShowsTheFirstLayer checks that the preview of a layered latent shows the whole image, its first layer.
func TestPreviewShowsTheFirstLayer(t *testing.T) {
	m := &Model{Format: latent.Wan21()}
	layers, _ := request.LatentOf([]int{1, 16, 3, 4, 5}, golden.Input("layers", 16*3*4*5))
	first := request.NewLatent(1, 16, 4, 5)
	for i := range first.Data {
		first.Data[i] = layers.Data[i/20*60+i%20]
	}
	if got, want := m.Preview(layers), m.Preview(first); len(want) == 0 || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of a picture, want the %d of the first layer", len(got), len(want))
	}
}
