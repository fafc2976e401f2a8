package node

import (
	"bytes"
	"image"
	"image/jpeg"

	"golang.org/x/image/draw"

	"patchbay/models/latent"
	"patchbay/parallel"
)

// previewSide is the longer side of a preview in pixels; smaller latents are enlarged, as ComfyUI does.
const previewSide = 512

// previewJPEG makes the preview of the first item of a model-space latent: ComfyUI's latent2rgb, JPEG quality 95. nil if the format has no preview.
func previewJPEG(f latent.Format, x0 parallel.Latent) []byte {
	pixels := f.RGB(x0.Data[:x0.C*x0.Y*x0.X], x0.Y, x0.X)
	if pixels == nil {
		return nil
	}
	small := image.NewRGBA(image.Rect(0, 0, x0.X, x0.Y))
	for i := range x0.Y * x0.X {
		copy(small.Pix[4*i:], pixels[3*i:3*i+3])
		small.Pix[4*i+3] = 255
	}
	w, h := previewSide, previewSide
	if x0.X > x0.Y {
		h = max(1, (previewSide*x0.Y+x0.X/2)/x0.X)
	} else {
		w = max(1, (previewSide*x0.X+x0.Y/2)/x0.Y)
	}
	large := image.NewRGBA(image.Rect(0, 0, w, h))
	draw.BiLinear.Scale(large, large.Bounds(), small, small.Bounds(), draw.Src, nil)
	var b bytes.Buffer
	if err := jpeg.Encode(&b, large, &jpeg.Options{Quality: 95}); err != nil {
		return nil
	}
	return b.Bytes()
}
