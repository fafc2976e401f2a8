package node

import (
	"patchbay/models/latent"
	"patchbay/node/picture"
	"patchbay/parallel"
)

// previewJPEG makes the preview of the first item of a model-space latent: ComfyUI's latent2rgb. nil if the format has no preview.
func previewJPEG(f latent.Format, x0 parallel.Latent) []byte {
	pixels := f.RGB(x0.Data[:x0.C*x0.Y*x0.X], x0.Y, x0.X)
	if pixels == nil {
		return nil
	}
	return picture.EnlargedJPEG(pixels, x0.Y, x0.X)
}
