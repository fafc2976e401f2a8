package picture

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"patchbay/tests/golden"
)

// gridFile returns a picture of tests/golden/nodes/grid.safetensors (see TestPicturesOfEveryKind).
func gridFile(t testing.TB, name string) []byte {
	t.Helper()
	file, err := golden.Open("nodes/grid.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	e, ok := file.Entry(name)
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	return e.Data.Bytes()
}

// TestJPEGCutAnywhere cuts JPEG files after every byte of their first scan. What was before the cut is right, what is
// after it is gray, as Pillow makes it, and at most one unit of 8 or 16 pixels a side is something else.
func TestJPEGCutAnywhere(t *testing.T) {
	for name, unit := range map[string]int{
		"jpeg_420_big.jpg": 16, "jpeg_444.jpg": 8, "jpeg_grey.jpg": 8, "jpeg_restart.jpg": 16,
	} {
		data := gridFile(t, name)
		whole, _, err := Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		start := bytes.Index(data, []byte{0xff, 0xda})
		start += 2 + int(data[start+2])<<8 + int(data[start+3])
		right := 0
		for n := start; n <= len(data); n++ {
			im, _, err := Decode(data[:n])
			if err != nil {
				t.Fatalf("%s cut to %d of %d bytes: %v", name, n, len(data), err)
			}
			kinds := unitKinds(im, whole, unit)
			good, gray := 0, 0
			for good < len(kinds) && kinds[good] == 'r' {
				good++
			}
			for gray < len(kinds)-good && kinds[len(kinds)-1-gray] == 'g' {
				gray++
			}
			if good+gray < len(kinds)-1 || good < right {
				t.Fatalf("%s cut to %d of %d bytes: %s (r right, g gray, x else); before it %d were right", name, n, len(data),
					kinds, right)
			}
			right = good
		}
		if len(data) > start+40 && right == 0 {
			t.Errorf("%s: nothing was ever right", name)
		}
	}
}

// unitKinds tells for each square of n pixels a side whether it is as in the whole picture (r), gray (g) or else (x).
func unitKinds(im, whole *Image, n int) string {
	var out []byte
	for y := 0; y < im.Y; y += n {
		for x := 0; x < im.X; x += n {
			a, b := im.Cut(x, y, min(n, im.X-x), min(n, im.Y-y)), whole.Cut(x, y, min(n, im.X-x), min(n, im.Y-y))
			switch {
			case slices.Equal(a.Data, b.Data):
				out = append(out, 'r')
			case !slices.ContainsFunc(a.Data, func(v float32) bool { return v != 128.0/255 }):
				out = append(out, 'g')
			default:
				out = append(out, 'x')
			}
		}
	}
	return string(out)
}

// TestProgressiveJPEGCutAnywhere checks that a progressive JPEG can be read up to any cut, and that the more is there
// the closer the picture is.
func TestProgressiveJPEGCutAnywhere(t *testing.T) {
	for _, name := range []string{"jpeg_progressive.jpg", "jpeg_progressive_noend.jpg", "jpeg_grey_progressive.jpg"} {
		data := gridFile(t, name)
		whole, _, err := Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		start := bytes.Index(data, []byte{0xff, 0xda})
		start += 2 + int(data[start+2])<<8 + int(data[start+3])
		off := func(n int) float64 {
			im, _, err := Decode(data[:n])
			if err != nil {
				t.Fatalf("%s cut to %d of %d bytes: %v", name, n, len(data), err)
			}
			sum := 0.0
			for i, v := range im.Data {
				sum += math.Abs(float64(v-whole.Data[i])) * 255
			}
			return sum / float64(len(im.Data))
		}
		last := off(start)
		for n := start; n <= len(data); n++ {
			v := off(n)
			if !(v <= last+2) {
				t.Errorf("%s cut to %d of %d bytes: off by %.2f of 255, by %.2f with a byte less", name, n, len(data), v, last)
			}
			last = v
		}
		if first, late := off(start), off(len(data)*9/10); !(late < first/5) {
			t.Errorf("%s: off by %.2f of 255 with nine tenths of the file, by %.2f without pixels", name, late, first)
		}
	}
}

// TestPNGCutShort checks that the rows before a cut are right and those after it zero, as Pillow makes them.
func TestPNGCutShort(t *testing.T) {
	for _, name := range []string{"png_rgb8.png", "png_rgba16.png", "png_grey4.png", "png_palette8.png"} {
		data := gridFile(t, name)
		whole, _, err := Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		start := bytes.Index(data, []byte("IDAT")) + 4
		n := start + (len(data)-16-start)*3/5
		im, _, err := Decode(data[:n])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		row := 3 * im.X
		good := 0
		for good < im.Y && slices.Equal(im.Data[good*row:][:row], whole.Data[good*row:][:row]) {
			good++
		}
		zero := slices.Repeat(im.Data[len(im.Data)-3:], (im.Y-good-1)*im.X)
		if good < im.Y/3 || good > im.Y*3/4 || !slices.Equal(im.Data[(good+1)*row:], zero) {
			t.Errorf("%s: %d rows of %d are right, and the last ones are not of one colour", name, good, im.Y)
		}
		if _, _, err := Decode(data[:start+1]); err == nil {
			t.Errorf("%s was decoded without pixels", name)
		}
	}
	if _, _, err := Decode(gridFile(t, "png_rgb8_interlaced.png")[:500]); err == nil {
		t.Error("half of an interlaced PNG was decoded")
	}
}
