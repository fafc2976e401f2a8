package value

import (
	"bytes"
	"image/jpeg"
	"testing"

	"patchbay/models/latent"
	"patchbay/parallel/request"
)

func TestPreviewFillsTheSquare(t *testing.T) {
	for _, c := range []struct{ y, x, h, w int }{
		{8, 8, 512, 512},
		{8, 12, 341, 512},
		{128, 64, 512, 256},
		{200, 100, 512, 256},
	} {
		data := (&Model{Format: latent.FLUX()}).Preview(request.NewLatent(2, 16, c.y, c.x))
		cfg, err := jpeg.DecodeConfig(bytes.NewReader(data))
		if err != nil || cfg.Width != c.w || cfg.Height != c.h {
			t.Errorf("a latent of %d x %d gives %d x %d, %v, want %d x %d", c.x, c.y, cfg.Width, cfg.Height, err, c.w, c.h)
		}
	}
	if data := (&Model{Format: latent.FLUX2()}).Preview(request.NewLatent(1, 128, 4, 4)); len(data) == 0 {
		t.Error("FLUX.2 gave no preview")
	}
	if data := (&Model{Format: latent.Format{Channels: 4}}).Preview(request.NewLatent(1, 4, 2, 2)); data != nil {
		t.Error("a format without preview factors gave a picture")
	}
}
