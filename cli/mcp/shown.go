package mcp

import (
	"bytes"
	"fmt"
	"image"
	"image/jpeg"
	"math"
	"net/http"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/image/draw"

	"patchbay/node/picture"
)

// leastShown is the smallest bound for the pictures of an answer, in bytes.
const leastShown = 16 << 10

// jpegQuality is that of pictures whose files are too large to be shown.
const jpegQuality = 85

// show returns the pictures among files, each within its part of the bytes that an answer may have, and notes in the
// others why they are not shown.
func (c *call) show(which []*file, data [][]byte) (out []sdk.Content) {
	for i, f := range which {
		kind, shown, note := bounded(data[i], c.most/len(which))
		f.Shown = note
		if shown != nil {
			out = append(out, &sdk.ImageContent{Data: shown, MIMEType: kind})
		}
	}
	return out
}

// bounded returns a picture of at most so many bytes: the file itself if it fits, else a JPEG, smaller if need be; the
// note says so. It returns nil and the reason if there is none.
func bounded(data []byte, most int) (kind string, shown []byte, note string) {
	kind = http.DetectContentType(data)
	if slices.Contains([]string{"image/png", "image/jpeg", "image/webp", "image/gif"}, kind) && len(data) <= most {
		return kind, data, ""
	}
	im, _, err := picture.Decode(data)
	if err != nil {
		return "", nil, err.Error()
	}
	first := im.Items(0, 1).Widened(3)
	whole := &image.RGBA{Pix: make([]byte, 0, 4*im.Y*im.X), Stride: 4 * im.X, Rect: image.Rect(0, 0, im.X, im.Y)}
	for p := range slices.Chunk(first.Bytes(0), 3) {
		whole.Pix = append(whole.Pix, p[0], p[1], p[2], 255)
	}
	for x, y := im.X, im.Y; x > 0 && y > 0; {
		small := whole
		if x != im.X {
			small = image.NewRGBA(image.Rect(0, 0, x, y))
			draw.CatmullRom.Scale(small, small.Bounds(), whole, whole.Bounds(), draw.Src, nil)
		}
		var b bytes.Buffer
		if err := jpeg.Encode(&b, small, &jpeg.Options{Quality: jpegQuality}); err != nil {
			return "", nil, err.Error()
		}
		if b.Len() <= most {
			return "image/jpeg", b.Bytes(), fmt.Sprintf("as JPEG of %d x %d, because the file is large", x, y)
		}
		by := min(0.9, math.Sqrt(float64(most)/float64(b.Len()))) // bytes go by the number of pixels
		x, y = int(by*float64(x)), int(by*float64(y))
	}
	return "", nil, "it does not fit into an answer"
}
