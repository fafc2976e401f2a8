package picture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"slices"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
	"golang.org/x/image/webp"
)

// Limits on pictures from outside, checked on the header before anything is allocated.
const (
	maxPixels = 1 << 26 // of one picture, all frames together
	maxSide   = 1 << 15
)

// codec is one file format: how its files begin and how they are read.
type codec struct {
	name   string
	begins []string // "?" is any byte
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
}

func codecs() []codec {
	return []codec{
		{"PNG", []string{pngSignature}, png.DecodeConfig, png.Decode},
		{"JPEG", []string{"\xff\xd8"}, jpeg.DecodeConfig, jpeg.Decode},
		{"WebP", []string{"RIFF????WEBP?"}, webp.DecodeConfig, webp.Decode},
		{"BMP", []string{"BM"}, bmp.DecodeConfig, bmp.Decode},
		{"TIFF", []string{"II*\x00", "MM\x00*"}, tiff.DecodeConfig, tiff.Decode},
		{"GIF", []string{"GIF8"}, gif.DecodeConfig, nil}, // a GIF has many pictures: decodeGIF
	}
}

// is reports whether a file is of the format.
func (c *codec) is(data []byte) bool {
	return slices.ContainsFunc(c.begins, func(start string) bool {
		for i := range len(start) {
			if i == len(data) || start[i] != '?' && start[i] != data[i] {
				return false
			}
		}
		return true
	})
}

// pictures reads the pictures of a file.
func (c *codec) pictures(data []byte) ([]image.Image, error) {
	if c.decode == nil {
		return decodeGIF(data)
	}
	im, err := c.decode(bytes.NewReader(data))
	return []image.Image{im}, err
}

// Decode reads a picture file (PNG, JPEG, WebP, BMP, GIF, TIFF) as ComfyUI's LoadImage does: pixels [B, Y, X, 3]
// without alpha, mask [B, Y, X] = 1 - alpha, or zeros [B, 64, 64] if no frame has alpha. EXIF orientation is applied;
// the frames of a GIF become a batch. Files above the pixel limits are refused by their header.
func Decode(data []byte) (im *Image, mask *Mask, err error) {
	return decodeWithin(data, maxPixels)
}

// decodeWithin is Decode with a pixel limit of its own. A frame counts as 64 x 64 pixels at least, which is the
// smallest mask: a GIF may have very many small ones.
func decodeWithin(data []byte, most int64) (im *Image, mask *Mask, err error) {
	for _, c := range codecs() {
		if !c.is(data) {
			continue
		}
		pixels := data
		if c.name == "PNG" {
			pixels = onlyPixels(data)
		}
		cfg, err := c.config(bytes.NewReader(pixels))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.name, err)
		}
		frames := int64(1)
		if c.name == "GIF" {
			frames = max(1, countGIFFrames(data))
		}
		if cfg.Width < 1 || cfg.Height < 1 || cfg.Width > maxSide || cfg.Height > maxSide ||
			max(int64(cfg.Width)*int64(cfg.Height), 64*64)*frames > most {
			return nil, nil, fmt.Errorf("%s of %d x %d pixels, %d frames: at most %d pixels in all and %d a side are allowed",
				c.name, cfg.Width, cfg.Height, frames, most, maxSide)
		}
		pictures, err := c.pictures(pixels)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.name, err)
		}
		im, mask = toTensors(pictures, orientation(c.name, data))
		return im, mask, nil
	}
	return nil, nil, fmt.Errorf("not a picture that can be read: PNG, JPEG, WebP, BMP, GIF and TIFF are")
}

// toTensors converts frames of one size. The first decides the size, and others are left out, as in LoadImage. If some
// frames have alpha, the masks of the others are zeros of their size.
func toTensors(frames []image.Image, turn int) (*Image, *Mask) {
	var im Image
	var mask Mask
	anyAlpha := slices.ContainsFunc(frames, hasAlpha)
	for _, f := range frames {
		px := turned{straight(f), turn}
		x, y := px.size()
		if im.B > 0 && (y != im.Y || x != im.X) {
			continue
		}
		if im.Y, im.X, im.C = y, x, 3; im.Data == nil {
			im.Data = make([]float32, 0, 3*x*y*len(frames))
		}
		alpha := hasAlpha(f)
		if mask.Y, mask.X = y, x; !anyAlpha {
			mask.Y, mask.X = 64, 64
		}
		if !alpha {
			mask.Data = append(mask.Data, make([]float32, mask.Y*mask.X)...)
		}
		for r := range y {
			for c := range x {
				p := px.at(c, r)
				im.Data = append(im.Data, float32(p[0])/255, float32(p[1])/255, float32(p[2])/255)
				if alpha {
					mask.Data = append(mask.Data, 1-float32(p[3])/255)
				}
			}
		}
		im.B++
		mask.B++
	}
	return &im, &mask
}

// straight returns 8-bit pixels with straight alpha. Gray 16-bit values are divided by 255 and clipped, as for PIL's
// mode I.
func straight(f image.Image) *image.NRGBA {
	b := f.Bounds()
	out := image.NewNRGBA(image.Rect(0, 0, b.Dx(), b.Dy()))
	for y := range b.Dy() {
		line := out.Pix[y*out.Stride:]
		if n, ok := f.(*image.NRGBA); ok {
			copy(line[:4*b.Dx()], n.Pix[n.PixOffset(b.Min.X, b.Min.Y+y):])
			continue
		}
		for x := range b.Dx() {
			at := f.At(b.Min.X+x, b.Min.Y+y)
			if g, ok := at.(color.Gray16); ok {
				at = color.Gray{uint8(min(g.Y/255, 255))}
			}
			p := color.NRGBAModel.Convert(at).(color.NRGBA)
			copy(line[4*x:], []uint8{p.R, p.G, p.B, p.A})
		}
	}
	return out
}

// hasAlpha reports whether the file's own pixel format has an alpha channel or a transparent palette entry.
func hasAlpha(f image.Image) bool {
	switch p := f.(type) {
	case *image.RGBA:
		return !p.Opaque() // Go reads opaque true-colour files into RGBA too
	case *image.RGBA64:
		return !p.Opaque()
	case *image.NRGBA, *image.NRGBA64, *image.NYCbCrA:
		return true
	case *image.Paletted:
		return slices.ContainsFunc(p.Palette, func(c color.Color) bool {
			_, _, _, a := c.RGBA()
			return a != 0xffff
		})
	}
	return false
}

// turned is a picture seen through one of the eight EXIF orientations (EXIF 2.32, tag 0x0112).
type turned struct {
	*image.NRGBA
	orientation int
}

func (t turned) size() (x, y int) {
	b := t.Bounds()
	if t.orientation >= 5 {
		return b.Dy(), b.Dx()
	}
	return b.Dx(), b.Dy()
}

func (t turned) at(x, y int) [4]uint8 {
	b := t.Bounds()
	w, h := b.Dx()-1, b.Dy()-1
	switch t.orientation {
	case 2:
		x = w - x
	case 3:
		x, y = w-x, h-y
	case 4:
		y = h - y
	case 5:
		x, y = y, x
	case 6:
		x, y = y, h-x
	case 7:
		x, y = w-y, h-x
	case 8:
		x, y = w-y, x
	}
	p := t.Pix[y*t.Stride+4*x:]
	return [4]uint8{p[0], p[1], p[2], p[3]}
}

// orientation returns the EXIF orientation of a file, 1 if there is none.
func orientation(format string, data []byte) int {
	switch format {
	case "JPEG":
		for i := 2; i+4 <= len(data) && data[i] == 0xff; {
			n := int(binary.BigEndian.Uint16(data[i+2:]))
			if data[i+1] == 0xda || n < 2 || i+2+n > len(data) {
				break
			}
			if seg := data[i+4 : i+2+n]; data[i+1] == 0xe1 && bytes.HasPrefix(seg, []byte("Exif\x00\x00")) {
				return tiffOrientation(seg[6:])
			}
			i += 2 + n
		}
	case "PNG":
		for rest := data[8:]; len(rest) >= 12; {
			n := uint64(binary.BigEndian.Uint32(rest))
			if n+12 > uint64(len(rest)) {
				break
			}
			if string(rest[4:8]) == "eXIf" {
				return tiffOrientation(rest[8 : 8+n])
			}
			rest = rest[12+n:]
		}
	case "WebP":
		for rest := data[12:]; len(rest) >= 8; {
			n := uint64(binary.LittleEndian.Uint32(rest[4:]))
			if n+8 > uint64(len(rest)) {
				break
			}
			if string(rest[:4]) == "EXIF" {
				return tiffOrientation(bytes.TrimPrefix(rest[8:8+n], []byte("Exif\x00\x00")))
			}
			rest = rest[min(8+n+n%2, uint64(len(rest))):]
		}
	case "TIFF":
		return tiffOrientation(data)
	}
	return 1
}

// tiffOrientation reads tag 0x0112 of the first directory of a TIFF structure (TIFF 6.0 section 2).
func tiffOrientation(b []byte) int {
	if len(b) < 8 {
		return 1
	}
	var order binary.ByteOrder = binary.LittleEndian
	if b[0] == 'M' {
		order = binary.BigEndian
	}
	at := uint64(order.Uint32(b[4:]))
	if at+2 > uint64(len(b)) {
		return 1
	}
	for n := uint64(order.Uint16(b[at:])); n > 0; n-- {
		e := at + 2 + 12*(n-1)
		if e+12 > uint64(len(b)) || order.Uint16(b[e:]) != 0x0112 {
			continue
		}
		if v := int(order.Uint16(b[e+8:])); v >= 1 && v <= 8 {
			return v
		}
	}
	return 1
}

// decodeGIF draws the frames of a GIF one over the other, as viewers show them (GIF89a section 23, disposal methods).
func decodeGIF(data []byte) ([]image.Image, error) {
	g, err := gif.DecodeAll(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	canvas := image.NewNRGBA(image.Rect(0, 0, g.Config.Width, g.Config.Height))
	var out []image.Image
	for i, frame := range g.Image {
		before := image.NewNRGBA(canvas.Bounds())
		copy(before.Pix, canvas.Pix)
		draw.Draw(canvas, frame.Bounds(), frame, frame.Bounds().Min, draw.Over)
		shown := image.NewNRGBA(canvas.Bounds())
		copy(shown.Pix, canvas.Pix)
		if shown.Opaque() {
			out = append(out, opaque{shown})
		} else {
			out = append(out, shown)
		}
		switch g.Disposal[i] {
		case gif.DisposalBackground:
			draw.Draw(canvas, frame.Bounds(), image.Transparent, image.Point{}, draw.Src)
		case gif.DisposalPrevious:
			canvas = before
		}
	}
	return out, nil
}

// opaque hides that a frame has an alpha channel.
type opaque struct{ image.Image }

// countGIFFrames counts the frames of a GIF by its blocks, without decoding them.
func countGIFFrames(b []byte) int64 {
	table := func(flags byte) int {
		if flags&0x80 == 0 {
			return 0
		}
		return 3 << (flags&7 + 1)
	}
	if len(b) < 13 {
		return 0
	}
	i, n := 13+table(b[10]), int64(0)
	skip := func() {
		for i < len(b) && b[i] != 0 {
			i += int(b[i]) + 1
		}
		i++
	}
	for i < len(b) {
		switch b[i] {
		case 0x21:
			i += 2
			skip()
		case 0x2c:
			if i+10 > len(b) {
				return n
			}
			n++
			i += 11 + table(b[i+9])
			skip()
		default:
			return n
		}
	}
	return n
}
