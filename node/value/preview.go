package value

import (
	"patchbay/node/picture"
	"patchbay/parallel"
)

// Preview makes a JPEG of the first item, and its first layer, of a model-space latent: ComfyUI's latent2rgb. nil if the
// format has no preview.
func (m *Model) Preview(x0 parallel.Latent) []byte {
	x0 = Cut(x0, "t", 0, 1)
	pixels := m.Format.RGB(x0.Data[:x0.C*x0.Y*x0.X], x0.Y, x0.X)
	if pixels == nil {
		return nil
	}
	k := m.Format.Side()
	return picture.EnlargedJPEG(pixels, k*x0.Y, k*x0.X)
}
