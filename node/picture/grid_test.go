package picture

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"patchbay/engine/safetensors"
	"patchbay/tests/golden"
)

// TestPicturesOfEveryKind decodes the tiny pictures of nodes/grid.safetensors and compares pixels and masks with
// what LoadImage of ComfyUI 0.33.0 (PyAV 18.1.0) and Pillow 13.0.0 read from them. For a picture NAME the file has its
// bytes (NAME), the pixels [B, Y, X, 3] (NAME.pixels) and the mask (NAME.mask; zeros of 64 x 64 are left out), 8-bit or
// F32, and in its metadata the largest difference allowed, in levels of 255. The shapes are ComfyUI's; the values are
//   - of 16-bit files, JPEG with shared chroma and GIF (white where transparent): ComfyUI's;
//   - of all others Pillow's. ComfyUI's differ by at most 3 levels, because it converts through 16-bit integers, or
//     altogether: PyAV leaves out the mirroring of EXIF orientations 2, 4, 5 and 7, and loses the tiles of TIFF and its
//     multiplied alpha.
//
// For a picture that must be refused the metadata has a part of the error.
func TestPicturesOfEveryKind(t *testing.T) {
	file, err := golden.Open("nodes/grid.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	entry := func(name string, frames int) (safetensors.Tensor, []float32) {
		e, ok := file.Entry(name)
		if !ok { // only of masks
			return safetensors.Tensor{Shape: []int{frames, 64, 64}}, make([]float32, frames*64*64)
		}
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		if e.FileType == "U8" {
			for i := range v {
				v[i] /= 255
			}
		}
		return e, v
	}
	count := 0
	for name, rule := range file.Metadata() {
		count++
		data, _ := file.Entry(name)
		im, mask, err := Decode(data.Data.Bytes())
		slack, notNumber := strconv.ParseFloat(rule, 64)
		if notNumber != nil {
			if err == nil || !strings.Contains(err.Error(), rule) {
				t.Errorf("%s: got the error %v, want one with %q", name, err, rule)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for part, got := range map[string]struct {
			shape []int
			data  []float32
		}{
			"pixels": {[]int{im.B, im.Y, im.X, im.C}, im.Data}, "mask": {[]int{mask.B, mask.Y, mask.X}, mask.Data},
		} {
			want, v := entry(name+"."+part, im.B)
			if !slices.Equal(got.shape, want.Shape) {
				t.Errorf("%s: %s have the shape %v, want %v", name, part, got.shape, want.Shape)
				continue
			}
			worst, at := 0.0, 0
			for i := range v {
				if d := 255 * math.Abs(float64(got.data[i]-v[i])); !(d <= worst) {
					worst, at = d, i
				}
			}
			if !(worst <= slack+1e-4) {
				t.Errorf("%s: %s: value %d is %.2f of 255, want %.2f to within %v", name, part, at, 255*got.data[at],
					255*v[at], slack)
			}
		}
	}
	if count < 130 {
		t.Errorf("%d pictures in the record, want all 150", count)
	}
}
