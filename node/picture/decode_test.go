package picture

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
)

// pattern returns an image whose pixels all differ: red encodes the column, green the row.
func pattern(x, y int, alpha bool) *image.NRGBA {
	im := image.NewNRGBA(image.Rect(0, 0, x, y))
	for r := range y {
		for c := range x {
			a := uint8(255)
			if alpha {
				a = uint8(10*c + 5)
			}
			im.SetNRGBA(c, r, color.NRGBA{uint8(20 * c), uint8(30 * r), 7, a})
		}
	}
	return im
}

func encoded(t *testing.T, f func(*bytes.Buffer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestEncodePNGIsReadByOthers(t *testing.T) {
	for _, c := range []int{1, 3, 4} {
		pixels := make([]byte, 5*7*c)
		r := rand.New(rand.NewPCG(1, uint64(c)))
		for i := range pixels {
			pixels[i] = byte(r.Uint32())
		}
		im, err := png.Decode(bytes.NewReader(EncodePNG(pixels, 5, 7, c, [2]string{"k", "v é"}, [2]string{"狐", "狐"})))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 * 7 {
			p := color.NRGBAModel.Convert(im.At(i%7, i/7)).(color.NRGBA)
			got := []byte{p.R, p.G, p.B, p.A}
			for ch := range c {
				if c == 1 && got[0] != pixels[i] || c > 1 && got[ch] != pixels[i*c+ch] {
					t.Fatalf("%d channels: pixel %d is %v, want %v", c, i, got, pixels[i*c:i*c+c])
				}
			}
		}
	}
}

func TestDecodeFormats(t *testing.T) {
	opaque, glass := pattern(6, 4, false), pattern(6, 4, true)
	for _, c := range []struct {
		name  string
		data  []byte
		alpha bool
		slack float32
	}{
		{"png", encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, opaque) }), false, 0},
		{"png alpha", encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, glass) }), true, 0},
		{"bmp", encoded(t, func(b *bytes.Buffer) error { return bmp.Encode(b, opaque) }), false, 0},
		{"tiff", encoded(t, func(b *bytes.Buffer) error { return tiff.Encode(b, opaque, nil) }), false, 0},
		{
			"jpeg", encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, opaque, &jpeg.Options{Quality: 100}) }),
			false, 0.12,
		},
	} {
		im, mask, err := Decode(c.data)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if im.B != 1 || im.Y != 4 || im.X != 6 || im.C != 3 {
			t.Errorf("%s: shape [%d, %d, %d, %d]", c.name, im.B, im.Y, im.X, im.C)
			continue
		}
		for i := range 24 {
			want := [3]float32{float32(20*(i%6)) / 255, float32(30*(i/6)) / 255, 7.0 / 255}
			for ch := range 3 {
				if d := im.Data[i*3+ch] - want[ch]; !(d <= c.slack && d >= -c.slack) {
					t.Errorf("%s: pixel %d channel %d is %v, want %v", c.name, i, ch, im.Data[i*3+ch], want[ch])
				}
			}
			if c.alpha && mask.Data[i] != 1-float32(10*(i%6)+5)/255 {
				t.Errorf("%s: mask %d is %v", c.name, i, mask.Data[i])
			}
		}
		if c.name == "tiff" { // the encoder writes an opaque alpha channel
			if mask.Y != 4 || mask.X != 6 || slices.ContainsFunc(mask.Data, func(v float32) bool { return v != 0 }) {
				t.Errorf("tiff: mask [%d, %d, %d], want zeros [1, 4, 6]", mask.B, mask.Y, mask.X)
			}
			continue
		}
		if !c.alpha && (mask.Y != 64 || mask.X != 64 ||
			slices.ContainsFunc(mask.Data, func(v float32) bool { return v != 0 })) {
			t.Errorf("%s: mask [%d, %d, %d], want zeros [1, 64, 64]", c.name, mask.B, mask.Y, mask.X)
		}
	}
}

// TestDecodeGIFWithAlphaInOneFrame checks that the masks of all frames have the same size.
func TestDecodeGIFWithAlphaInOneFrame(t *testing.T) {
	clear := color.Palette{color.NRGBA{0, 0, 0, 0}, color.NRGBA{0, 255, 0, 255}}
	g := &gif.GIF{Config: image.Config{Width: 3, Height: 2, ColorModel: clear}}
	for i := range 2 { // the first frame is transparent, the second covers it
		f := image.NewPaletted(image.Rect(0, 0, 3, 2), clear)
		for k := range f.Pix {
			f.Pix[k] = uint8(i)
		}
		g.Image, g.Delay, g.Disposal = append(g.Image, f), append(g.Delay, 1), append(g.Disposal, gif.DisposalNone)
	}
	im, mask, err := Decode(encoded(t, func(b *bytes.Buffer) error { return gif.EncodeAll(b, g) }))
	if err != nil {
		t.Fatal(err)
	}
	if im.B != 2 || mask.B != 2 || mask.Y != 2 || mask.X != 3 || len(mask.Data) != 12 || mask.Data[0] != 1 ||
		mask.Data[6] != 0 {
		t.Errorf("got %d frames and the mask [%d, %d, %d] %v, want one for the clear frame and zeros for the other", im.B,
			mask.B, mask.Y, mask.X, mask.Data)
	}
}

func TestDecodeGIFFramesBecomeABatch(t *testing.T) {
	palette := color.Palette{color.NRGBA{255, 0, 0, 255}, color.NRGBA{0, 255, 0, 255}}
	g := &gif.GIF{Config: image.Config{Width: 4, Height: 2, ColorModel: palette}}
	for i := range 2 {
		f := image.NewPaletted(image.Rect(2*i, 0, 2*i+2, 2), palette)
		for k := range f.Pix {
			f.Pix[k] = uint8(i)
		}
		g.Image, g.Delay, g.Disposal = append(g.Image, f), append(g.Delay, 1), append(g.Disposal, gif.DisposalNone)
	}
	im, _, err := Decode(encoded(t, func(b *bytes.Buffer) error { return gif.EncodeAll(b, g) }))
	if err != nil {
		t.Fatal(err)
	}
	second := im.Data[4*2*3:]
	if im.B != 2 || second[0] != 1 || second[2*3+1] != 1 {
		t.Errorf("got %d frames; the second begins with %v, want red left and green right", im.B, second[:12])
	}
}

// exifJPEG adds an EXIF orientation to a JPEG.
func exifJPEG(data []byte, turn uint16) []byte {
	tags := []byte("Exif\x00\x00MM\x00*" +
		"\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00")
	binary.BigEndian.PutUint16(tags[6+18:], turn)
	head := binary.BigEndian.AppendUint16([]byte{0xff, 0xd8, 0xff, 0xe1}, uint16(len(tags)+2))
	return append(append(head, tags...), data[2:]...)
}

func TestDecodeTurnsByEXIF(t *testing.T) {
	wide := image.NewGray(image.Rect(0, 0, 16, 8)) // a bright corner at the top left
	for y := range 4 {
		for x := range 4 {
			wide.SetGray(x, y, color.Gray{255})
		}
	}
	data := encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, wide, nil) })
	// where the bright corner lands: left or right, top or bottom, for each orientation of EXIF 2.32
	for turn, corner := range map[uint16][2]bool{
		1: {false, false}, 2: {true, false}, 3: {true, true}, 4: {false, true},
		5: {false, false}, 6: {true, false}, 7: {true, true}, 8: {false, true},
	} {
		im, _, err := Decode(exifJPEG(data, turn))
		if err != nil {
			t.Fatal(err)
		}
		if tall := im.Y > im.X; tall != (turn >= 5) {
			t.Errorf("orientation %d: %d x %d", turn, im.X, im.Y)
		}
		at := func(right, bottom bool) float32 {
			x, y := 1, 1
			if right {
				x = im.X - 2
			}
			if bottom {
				y = im.Y - 2
			}
			return im.Data[(y*im.X+x)*3]
		}
		if at(corner[0], corner[1]) < 0.9 || at(!corner[0], !corner[1]) > 0.1 {
			t.Errorf("orientation %d: the bright corner is not where it belongs", turn)
		}
	}
}

func TestDecodeRefusesBombsAndJunk(t *testing.T) {
	bomb := EncodePNG(make([]byte, 3), 1, 1, 3)
	binary.BigEndian.PutUint32(bomb[16:], 60000)
	binary.BigEndian.PutUint32(bomb[20:], 60000)
	fixPNG(bomb)
	for name, data := range map[string][]byte{
		"bomb": bomb, "text": []byte("hello"), "empty": nil,
		"half": EncodePNG(make([]byte, 300), 10, 10, 3)[:30],
	} {
		_, _, err := Decode(data)
		if err == nil {
			t.Errorf("%s was decoded", name)
		}
		if name == "bomb" && (err == nil || !strings.Contains(err.Error(), "allowed")) {
			t.Errorf("bomb: %v", err)
		}
	}
}

// fixPNG recomputes the checksum of the IHDR chunk.
func fixPNG(data []byte) {
	var b bytes.Buffer
	writeChunk(&b, "IHDR", data[16:29])
	copy(data[8:], b.Bytes())
}

func FuzzPNG(f *testing.F) { pngTarget(f).Fuzz(f) }

func FuzzImage(f *testing.F) { imageTarget(f).Fuzz(f) }

// TestReadsRewrittenTexts checks that the workflow and the pixels of a file can be read whose tEXt chunks have UTF-8
// text and a wrong checksum. Many of ComfyUI's example images were rewritten like this by a tool.
func TestReadsRewrittenTexts(t *testing.T) {
	data := EncodePNG([]byte{1, 2, 3, 200, 100, 50}, 1, 2, 3,
		[2]string{"prompt", `{"1": {"class_type": "A", "inputs": {"text": "??"}}}`})
	at := bytes.Index(data, []byte("??"))
	copy(data[at:], "é") // two bytes in UTF-8; the checksum is wrong now
	prompt, _, err := WorkflowFrom(data)
	if err != nil || !strings.Contains(string(prompt), `"é"`) {
		t.Errorf("got %q, %v; want the text é", prompt, err)
	}
	im, _, err := Decode(data)
	if err != nil || im.X != 2 || im.Data[3] != float32(200)/255 {
		t.Errorf("the picture: %v, %v", im, err)
	}
	at = bytes.Index(data, []byte("IDAT"))
	data[at+6] ^= 0x40
	if _, _, err := Decode(data); err == nil {
		t.Error("pixels with a wrong checksum were decoded")
	}
}
