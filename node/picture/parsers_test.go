package picture

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"testing"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"

	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// TestPicturesUnderTheHammer runs the parsers of images on mutated inputs: 20,000 each, or 10,000,000 in `make soak`.
// The fuzz targets of the same names have the same bodies.
func TestPicturesUnderTheHammer(t *testing.T) {
	t.Run("PNG", func(t *testing.T) { pngTarget(t).Run(t, hammer.Runs) })
	t.Run("Image", func(t *testing.T) { imageTarget(t).Run(t, hammer.Runs) })
}

// mendPNG recomputes the checksums of the chunks of a PNG. Truncated chunks stay as they are.
func mendPNG(b []byte) []byte {
	if !bytes.HasPrefix(b, []byte(pngSignature)) {
		return b
	}
	for rest := b[8:]; len(rest) >= 12; {
		n := uint64(binary.BigEndian.Uint32(rest))
		if n+12 > uint64(len(rest)) {
			break
		}
		binary.BigEndian.PutUint32(rest[8+n:], crc32.ChecksumIEEE(rest[4:8+n]))
		rest = rest[12+n:]
	}
	return b
}

// texts is the prompt and the other texts of a PNG.
type texts struct {
	prompt []byte
	extra  map[string]any
}

// pngTarget checks that a workflow found in an image is JSON.
func pngTarget(tb testing.TB) *hammer.Target[texts] {
	tb.Helper()
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	_, err := w.Write([]byte(`{"1": {"class_type": "A"}}`))
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
	var packed bytes.Buffer
	packed.WriteString(pngSignature)
	writeChunk(&packed, "zTXt", append([]byte("prompt\x00\x00"), z.Bytes()...))
	writeChunk(&packed, "iTXt", append([]byte("workflow\x00\x01\x00en\x00\x00"), z.Bytes()...))
	writeChunk(&packed, "IEND", nil)
	seeds := []hammer.Input{
		{Data: EncodePNG(make([]byte, 12), 2, 2, 3, [2]string{"prompt", `{"1": {"class_type": "A"}}`},
			[2]string{"workflow", "狐"})},
		{Data: []byte(pngSignature + "\x00\x00\x00\x04zTXtk\x00\x00x")},
		{Data: packed.Bytes()},
	}
	for _, name := range []string{"animated.png", "animated.webp", "still.webp", "exif.jpg"} {
		seeds = append(seeds, hammer.Input{Data: comfyUIFile(tb, name)})
	}
	return &hammer.Target[texts]{
		Name: "FuzzPNG", Mend: mendPNG, Seeds: seeds,
		Parse: func(in hammer.Input) (texts, error) {
			prompt, extra, err := WorkflowFrom(in.Data)
			return texts{prompt, extra}, err
		},
		Check: func(_ hammer.Input, out texts, refused error) error {
			if refused != nil {
				return nil
			}
			if _, err := pyjson.Decode(out.prompt); err != nil {
				return fmt.Errorf("a prompt that is not JSON was returned: %w", err)
			}
			return nil
		},
		// A compressed text may be a thousand times as long as its chunk (deflate), and a decoder takes 48 KiB.
		Bound: func(in hammer.Input) int64 {
			n := int64(8<<10) + 400*int64(len(in.Data))
			if k := bytes.Count(in.Data, []byte("zTXt")) + bytes.Count(in.Data, []byte("iTXt")); k > 0 {
				n += int64(k)*48<<10 + 5*1032*int64(len(in.Data))
			}
			return n
		},
	}
}

// hammerPixels is the pixel limit in these tests. Images of the real limit would take too long.
const hammerPixels = 1 << 14

// decoded is an image with its mask.
type decoded struct {
	im   *Image
	mask *Mask
}

// imageTarget checks that values, shapes and the pixel limit of a decoded image are consistent.
func imageTarget(tb testing.TB) *hammer.Target[decoded] {
	tb.Helper()
	return &hammer.Target[decoded]{
		Name: "FuzzImage", Mend: mendPNG, Seeds: pictureSeeds(tb),
		Parse: func(in hammer.Input) (decoded, error) {
			im, mask, err := decodeWithin(in.Data, hammerPixels)
			return decoded{im, mask}, err
		},
		Check: func(_ hammer.Input, p decoded, refused error) error {
			if refused != nil {
				return nil
			}
			im, mask := p.im, p.mask
			if len(im.Data) != im.B*im.Y*im.X*im.C || len(mask.Data) != mask.B*mask.Y*mask.X || im.B < 1 ||
				im.B*im.Y*im.X > hammerPixels {
				return fmt.Errorf("picture [%d, %d, %d, %d] with %d values, mask [%d, %d, %d] with %d", im.B, im.Y, im.X, im.C,
					len(im.Data), mask.B, mask.Y, mask.X, len(mask.Data))
			}
			return nil
		},
		// The decoders' tables, and 64 bytes for every pixel that the header may ask for: the decoded image, its 8-bit
		// non-premultiplied form, f32 and mask.
		Bound: func(in hammer.Input) int64 { return 256<<10 + 4*int64(len(in.Data)) + 64*hammerPixels },
	}
}

// pictureSeeds returns small images of every format.
func pictureSeeds(tb testing.TB) []hammer.Input {
	tb.Helper()
	soft := pattern(5, 4, true)
	grey := image.NewGray16(image.Rect(0, 0, 3, 3))
	index := image.NewPaletted(image.Rect(0, 0, 4, 4), color.Palette{color.NRGBA{255, 0, 0, 255}, color.NRGBA{0, 0, 0, 0}})
	moving := &gif.GIF{
		Image: []*image.Paletted{index, index}, Delay: []int{1, 1},
		Disposal: []byte{gif.DisposalBackground, gif.DisposalPrevious},
	}
	out := []hammer.Input{
		{Data: []byte("GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff" +
			",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;")},
		{Data: exifJPEG([]byte{0xff, 0xd8, 0xff, 0xd9}, 6)},
		{Data: EncodePNG(make([]byte, 12), 2, 2, 3)},
		// A lossless WebP of one pixel.
		{Data: []byte("RIFF\x1a\x00\x00\x00WEBPVP8L" +
			"\x0d\x00\x00\x00\x2f\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00")},
	}
	for _, name := range []string{
		"jpeg_restart.jpg", "jpeg_progressive.jpg", "webp_lossy_alpha.webp", "webp_animated_lossy_alpha.webp",
		"png_animated_alpha.png", "tiff_grey1_g4.tif", "bmp_rgba32_v4.bmp",
	} {
		out = append(out, hammer.Input{Data: gridFile(tb, name)})
	}
	for _, write := range []func(*bytes.Buffer) error{
		func(b *bytes.Buffer) error { return png.Encode(b, soft) },
		func(b *bytes.Buffer) error { return png.Encode(b, grey) },
		func(b *bytes.Buffer) error { return png.Encode(b, index) },
		func(b *bytes.Buffer) error { return jpeg.Encode(b, soft, nil) },
		func(b *bytes.Buffer) error { return bmp.Encode(b, soft) },
		func(b *bytes.Buffer) error {
			return tiff.Encode(b, soft, &tiff.Options{Compression: tiff.Deflate, Predictor: true})
		},
		func(b *bytes.Buffer) error { return tiff.Encode(b, index, nil) },
		func(b *bytes.Buffer) error { return gif.EncodeAll(b, moving) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			tb.Fatal(err)
		}
		out = append(out, hammer.Input{Data: b.Bytes()})
	}
	return out
}
