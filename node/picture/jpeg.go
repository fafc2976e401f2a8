package picture

import (
	"bytes"
	"image"
	"image/jpeg"

	"golang.org/x/image/draw"
)

// previewSide is the longer side of a preview in pixels; smaller pictures are enlarged, as ComfyUI does.
const previewSide = 512

// EnlargedJPEG scales 8-bit pixels [Y, X, 3] to a longer side of 512 and encodes them as JPEG of quality 95, which is
// what ComfyUI sends as a preview. It returns nil if the encoder refuses the size.
func EnlargedJPEG(pixels []byte, y, x int) []byte {
	small := image.NewRGBA(image.Rect(0, 0, x, y))
	for i := range y * x {
		copy(small.Pix[4*i:], pixels[3*i:3*i+3])
		small.Pix[4*i+3] = 255
	}
	w, h := previewSide, previewSide
	if x > y {
		h = max(1, (previewSide*y+x/2)/x)
	} else {
		w = max(1, (previewSide*x+y/2)/y)
	}
	large := image.NewRGBA(image.Rect(0, 0, w, h))
	draw.BiLinear.Scale(large, large.Bounds(), small, small.Bounds(), draw.Src, nil)
	var b bytes.Buffer
	if err := jpeg.Encode(&b, large, &jpeg.Options{Quality: 95}); err != nil {
		return nil
	}
	return b.Bytes()
}

// decodeJPEG reads a JPEG file. One that is cut short or has no end marker is read as far as it goes, and the rest is
// gray, as in Pillow.
func decodeJPEG(data []byte) ([]image.Image, error) {
	pictures, err := one(jpeg.Decode)(data)
	for _, mend := range []func() []byte{
		func() []byte { return append(data[:len(data):len(data)], 0xff, 0xd9) },
		func() []byte { return completeJPEG(data) },
	} {
		if err == nil {
			break
		}
		if mended, again := one(jpeg.Decode)(mend()); again == nil {
			pictures, err = mended, nil
		}
	}
	return pictures, err
}
