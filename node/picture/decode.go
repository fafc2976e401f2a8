package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
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
	decode func(data []byte) ([]image.Image, error)
	frames func(data []byte) int64 // nil: files have one picture
}

func codecs() []codec {
	return []codec{
		{"PNG", []string{pngSignature}, png.DecodeConfig, decodePNG, countPNGFrames},
		{"JPEG", []string{"\xff\xd8"}, jpeg.DecodeConfig, decodeJPEG, nil},
		{"WebP", []string{"RIFF????WEBP?"}, webp.DecodeConfig, decodeWebP, countWebPFrames},
		{"BMP", []string{"BM"}, bmp.DecodeConfig, decodeBMP, nil},
		{"TIFF", []string{"II*\x00", "MM\x00*"}, tiff.DecodeConfig, decodeTIFF, nil},
		{"GIF", []string{"GIF8"}, gif.DecodeConfig, decodeGIF, countGIFFrames},
	}
}

// one adapts a decoder of one picture.
func one(decode func(io.Reader) (image.Image, error)) func([]byte) ([]image.Image, error) {
	return func(data []byte) ([]image.Image, error) {
		im, err := decode(bytes.NewReader(data))
		return []image.Image{im}, err
	}
}

// others returns how files of formats begin that are known but not read.
func others() []codec {
	return []codec{
		{name: "AVIF", begins: []string{"????ftypavif", "????ftypavis", "????ftypmif1"}},
		{name: "HEIC", begins: []string{"????ftyphei", "????ftyphev", "????ftypmsf1"}},
		{name: "JPEG 2000", begins: []string{"\x00\x00\x00\x0cjP  ", "\xff\x4f\xff\x51"}},
		{name: "JPEG XL", begins: []string{"\x00\x00\x00\x0cJXL ", "\xff\x0a"}},
		{name: "ICO", begins: []string{"\x00\x00\x01\x00"}},
		{name: "BigTIFF", begins: []string{"II+\x00", "MM\x00+"}},
		{name: "PPM", begins: []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "Pf", "PF"}},
		{name: "PSD", begins: []string{"8BPS"}},
		{name: "EXR", begins: []string{"v/1\x01"}},
		{name: "SVG", begins: []string{"<svg", "<?xml"}},
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

// Decode reads a picture file (PNG, JPEG, WebP, BMP, GIF, TIFF) as LoadImage of ComfyUI 0.33.0 does: pixels
// [B, Y, X, 3] without alpha, mask [B, Y, X] = 1 - alpha, or zeros [B, 64, 64] if the kind of pixels has no alpha. EXIF
// orientation is applied; the frames of an animated GIF, WebP or PNG become a batch. Files above the pixel limits are
// refused by their header.
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
		header := data
		if c.name == "PNG" {
			header = onlyPixels(data)
		}
		cfg, err := c.config(bytes.NewReader(header))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.name, err)
		}
		frames := int64(1)
		if c.frames != nil {
			frames = max(1, c.frames(data))
		}
		if cfg.Width < 1 || cfg.Height < 1 || cfg.Width > maxSide || cfg.Height > maxSide ||
			max(int64(cfg.Width)*int64(cfg.Height), 64*64)*frames > most {
			return nil, nil, fmt.Errorf("%s of %d x %d pixels, %d frames: at most %d pixels in all and %d a side are allowed",
				c.name, cfg.Width, cfg.Height, frames, most, maxSide)
		}
		pictures, err := c.decode(data)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.name, err)
		}
		im, mask = toTensors(pictures, orientation(c.name, data))
		return im, mask, nil
	}
	const allowed = "PNG, JPEG, WebP, BMP, GIF and TIFF are"
	for _, c := range others() {
		if c.is(data) {
			return nil, nil, fmt.Errorf("%s files cannot be read: %s", c.name, allowed)
		}
	}
	return nil, nil, fmt.Errorf("not a picture that can be read: %s", allowed)
}

// toTensors converts frames of one size. If some frames have alpha, the masks of the others are zeros of their size.
func toTensors(frames []image.Image, turn int) (*Image, *Mask) {
	var im Image
	var mask Mask
	anyAlpha := slices.ContainsFunc(frames, hasAlpha)
	for _, f := range frames {
		px := turned{straight(f), turn}
		x, y := px.size()
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
				im.Data = append(im.Data, p[:3]...)
				if alpha {
					mask.Data = append(mask.Data, 1-p[3])
				}
			}
		}
		im.B++
		mask.B++
	}
	return &im, &mask
}

// raster is a picture of straight RGBA values in 0..1.
type raster struct {
	x, y int
	pix  []float32
}

// straight returns the values of a picture in the precision of its file. Colours under transparent pixels stay as they
// are, unless the file itself has multiplied them by alpha.
func straight(f image.Image) raster {
	b := f.Bounds()
	out := raster{b.Dx(), b.Dy(), make([]float32, 0, 4*b.Dx()*b.Dy())}
	wide := func(c color.NRGBA64) {
		out.pix = append(out.pix, float32(c.R)/0xffff, float32(c.G)/0xffff, float32(c.B)/0xffff, float32(c.A)/0xffff)
	}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			switch p := f.(type) {
			case *image.Gray16:
				v := p.Gray16At(x, y).Y
				wide(color.NRGBA64{v, v, v, 0xffff})
			case *image.NRGBA64:
				wide(p.NRGBA64At(x, y))
			case *image.RGBA64:
				wide(color.NRGBA64Model.Convert(p.RGBA64At(x, y)).(color.NRGBA64))
			default:
				c := narrow(p, x, y)
				out.pix = append(out.pix, float32(c.R)/255, float32(c.G)/255, float32(c.B)/255, float32(c.A)/255)
			}
		}
	}
	return out
}

// straight8 is straight in 8 bits.
func straight8(f image.Image) *image.NRGBA {
	if n, ok := f.(*image.NRGBA); ok {
		return n
	}
	b := f.Bounds()
	out := image.NewNRGBA(image.Rect(0, 0, b.Dx(), b.Dy()))
	for y := range b.Dy() {
		for x := range b.Dx() {
			out.SetNRGBA(x, y, narrow(f, b.Min.X+x, b.Min.Y+y))
		}
	}
	return out
}

// narrow returns a pixel in 8 bits. Multiplied alpha and ink become colours as in Pillow, in integers.
func narrow(f image.Image, x, y int) color.NRGBA {
	switch p := f.(type) {
	case *image.NRGBA:
		return p.NRGBAAt(x, y)
	case *image.RGBA:
		c := color.NRGBA(p.RGBAAt(x, y))
		if c.A > 0 && c.A < 255 {
			for _, v := range []*uint8{&c.R, &c.G, &c.B} {
				*v = uint8(min(255*int(*v)/int(c.A), 255))
			}
		}
		return c
	case *image.NRGBA64:
		c := p.NRGBA64At(x, y)
		return color.NRGBA{uint8(c.R >> 8), uint8(c.G >> 8), uint8(c.B >> 8), uint8(c.A >> 8)}
	case *image.CMYK:
		c := p.CMYKAt(x, y)
		light := int(255 - c.K)
		left := func(ink uint8) uint8 {
			v := int(ink)*light + 128
			return uint8(light - (v>>8+v)>>8)
		}
		return color.NRGBA{left(c.C), left(c.M), left(c.Y), 255}
	}
	return color.NRGBAModel.Convert(f.At(x, y)).(color.NRGBA)
}

// hasAlpha reports whether ComfyUI 0.33.0 reads a picture into pixels with alpha, opaque or not: it does with alpha
// channels, palettes and inks.
func hasAlpha(f image.Image) bool {
	switch p := f.(type) {
	case *image.RGBA:
		return !p.Opaque() // Go reads opaque true-colour files into RGBA too
	case *image.RGBA64:
		return !p.Opaque()
	case *image.NRGBA, *image.NRGBA64, *image.Paletted, *image.CMYK:
		return true
	}
	return false
}

// turned is a picture seen through one of the eight EXIF orientations (EXIF 2.32, tag 0x0112).
type turned struct {
	raster
	orientation int
}

func (t turned) size() (x, y int) {
	if t.orientation >= 5 {
		return t.y, t.x
	}
	return t.x, t.y
}

func (t turned) at(x, y int) []float32 {
	w, h := t.raster.x-1, t.raster.y-1
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
	at := 4 * (y*t.raster.x + x)
	return t.pix[at : at+4]
}

// orientation returns the EXIF orientation of a file, 1 if there is none.
func orientation(format string, data []byte) int {
	return tiffOrientation(exif(format, data))
}

// exif returns the TIFF structure of a file's EXIF data, nil if there is none.
func exif(format string, data []byte) []byte {
	switch format {
	case "JPEG":
		for i := 2; i+4 <= len(data) && data[i] == 0xff; {
			n := int(binary.BigEndian.Uint16(data[i+2:]))
			if data[i+1] == 0xda || n < 2 || i+2+n > len(data) {
				break
			}
			if seg := data[i+4 : i+2+n]; data[i+1] == 0xe1 && bytes.HasPrefix(seg, []byte("Exif\x00\x00")) {
				return seg[6:]
			}
			i += 2 + n
		}
	case "PNG":
		for _, c := range pngChunks(data) {
			if c.id == "eXIf" {
				return c.data
			}
		}
	case "WebP":
		for _, c := range riffChunks(data[12:]) {
			if c.id == "EXIF" {
				return bytes.TrimPrefix(c.data, []byte("Exif\x00\x00"))
			}
		}
	case "TIFF":
		return data
	}
	return nil
}

// tiffOrientation returns the orientation that a TIFF structure has, 1 if none.
func tiffOrientation(b []byte) int {
	if v := tiffTag(b, 0x0112); v >= 1 && v <= 8 {
		return v
	}
	return 1
}

// tiffTag returns a 16-bit value of the first directory of a TIFF structure (TIFF 6.0 section 2), 0 if there is none.
func tiffTag(b []byte, tag uint16) int {
	if len(b) < 8 {
		return 0
	}
	var order binary.ByteOrder = binary.LittleEndian
	if b[0] == 'M' {
		order = binary.BigEndian
	}
	at := uint64(order.Uint32(b[4:]))
	if at+2 > uint64(len(b)) {
		return 0
	}
	for n := uint64(order.Uint16(b[at:])); n > 0; n-- {
		if e := at + 2 + 12*(n-1); e+12 <= uint64(len(b)) && order.Uint16(b[e:]) == tag {
			return int(order.Uint16(b[e+8:]))
		}
	}
	return 0
}

// decodeTIFF returns the first picture of a TIFF file.
func decodeTIFF(data []byte) ([]image.Image, error) {
	const planes, compression, photometric = 0x011c, 0x0103, 0x0106
	if tiffTag(data, planes) == 2 {
		return nil, errors.New("tiff: unsupported feature: a plane for each colour")
	}
	pictures, err := one(tiff.Decode)(data)
	if err != nil {
		return nil, err
	}
	// Of fax compression (3, 4) package tiff returns paper as white, although in such a file white is 0, which black is
	// where photometric is 1.
	if g, ok := pictures[0].(*image.Gray); ok && tiffTag(data, photometric) == 1 {
		if c := tiffTag(data, compression); c == 3 || c == 4 {
			for i := range g.Pix {
				g.Pix[i] = ^g.Pix[i]
			}
		}
	}
	return pictures, nil
}

// decodeBMP returns the picture of a BMP file.
func decodeBMP(data []byte) ([]image.Image, error) {
	pictures, err := one(bmp.Decode)(data)
	if err != nil {
		return nil, err
	}
	if n, ok := pictures[0].(*image.NRGBA); ok && n.Opaque() { // 32 bits, of which eight mean nothing
		pictures[0] = opaque{n}
	}
	return pictures, nil
}

// decodeGIF draws the frames of a GIF one over the other, as viewers show them (GIF89a section 23, disposal methods).
// All have alpha, and what is transparent is white, as in ComfyUI 0.33.0.
func decodeGIF(data []byte) ([]image.Image, error) {
	g, err := gif.DecodeAll(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	canvas := image.NewNRGBA(image.Rect(0, 0, g.Config.Width, g.Config.Height))
	var out []image.Image
	for i, frame := range g.Image {
		before := copied(canvas)
		draw.Draw(canvas, frame.Bounds(), frame, frame.Bounds().Min, draw.Over)
		shown := copied(canvas)
		for p := 0; p < len(shown.Pix); p += 4 {
			if shown.Pix[p+3] == 0 {
				shown.Pix[p], shown.Pix[p+1], shown.Pix[p+2] = 255, 255, 255
			}
		}
		out = append(out, shown)
		switch g.Disposal[i] {
		case gif.DisposalBackground:
			draw.Draw(canvas, frame.Bounds(), image.Transparent, image.Point{}, draw.Src)
		case gif.DisposalPrevious:
			canvas = before
		}
	}
	return out, nil
}

// decodePNG returns the picture of a PNG file, or all frames of an animated one.
func decodePNG(data []byte) ([]image.Image, error) {
	if frames, err := decodeAPNG(data); frames != nil || err != nil {
		return frames, err
	}
	pictures, err := one(png.Decode)(onlyPixels(data))
	if err != nil {
		if mended := completePNG(data); mended != nil {
			return one(png.Decode)(mended)
		}
	}
	return pictures, err
}

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
