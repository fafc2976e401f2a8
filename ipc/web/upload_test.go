package web

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"mime/multipart"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/node/picture"
	"patchbay/tests/bubble"
)

// pngOf encodes pixels as Go's own encoder does.
func pngOf(t *testing.T, x, y int, at func(i, j int) color.NRGBA) []byte {
	t.Helper()
	im := image.NewNRGBA(image.Rect(0, 0, x, y))
	for j := range y {
		for i := range x {
			im.SetNRGBA(i, j, at(i, j))
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, im); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestMaskIsStored sends a mask as ComfyUI's mask editor does: the stored picture has the colors and texts of the
// original and the alpha of what was sent. References that name nothing, or lead out, are refused.
func TestMaskIsStored(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		colors := func(i, j int) color.NRGBA { return color.NRGBA{uint8(16 * i), uint8(16 * j), 7, 255} }
		alpha := func(i, j int) color.NRGBA { return color.NRGBA{200, 200, 200, uint8(20*i + j)} }
		original := picture.EncodePNG(func() (out []byte) {
			for j := range 4 {
				for i := range 6 {
					c := colors(i, j)
					out = append(out, c.R, c.G, c.B)
				}
			}
			return out
		}(), 4, 6, 3, [2]string{"prompt", `{"1": {"class_type": "Wait", "inputs": {}}}`})
		write(t, d.cfg.Roots.Output, map[string]string{"sub/a.png": string(original)})
		write(t, filepath.Dir(d.cfg.Roots.Output), map[string]string{"secret.png": string(original)})
		send := func(ref string, mask []byte) (int, []byte) {
			var b bytes.Buffer
			w := multipart.NewWriter(&b)
			part, err := w.CreateFormFile("image", "mask.png")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = part.Write(mask)
			for name, value := range map[string]string{"type": "input", "subfolder": "clipspace", "original_ref": ref} {
				if err := w.WriteField(name, value); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			status, body, _ := d.ask("POST", "/upload/mask", b.String(), "Content-Type", w.FormDataContentType())
			return status, body
		}
		mask := pngOf(t, 6, 4, alpha)
		status, body := send(`{"filename": "a.png", "subfolder": "sub", "type": "output"}`, mask)
		if status != 200 || !strings.Contains(string(body), `"name":"mask.png","subfolder":"clipspace","type":"input"`) {
			t.Fatalf("a mask: %d %s", status, body)
		}
		stored, err := os.ReadFile(filepath.Join(d.cfg.Roots.Input, "clipspace", "mask.png"))
		if err != nil {
			t.Fatal(err)
		}
		im, err := png.Decode(bytes.NewReader(stored))
		if err != nil || im.Bounds() != image.Rect(0, 0, 6, 4) {
			t.Fatalf("%v %v", err, im.Bounds())
		}
		for j := range 4 {
			for i := range 6 {
				want := colors(i, j)
				want.A = alpha(i, j).A
				if got := color.NRGBAModel.Convert(im.At(i, j)); im.(*image.NRGBA).NRGBAAt(i, j) != want {
					t.Errorf("pixel %d,%d is %v, want %v", i, j, got, want)
				}
			}
		}
		if prompt, _, err := picture.WorkflowFrom(stored); err != nil || !strings.Contains(string(prompt), "Wait") {
			t.Errorf("the workflow in the picture is %s, %v", prompt, err)
		}
		for _, c := range []struct {
			ref  string
			mask []byte
			want int
		}{
			{`{"filename": "a.png", "subfolder": "sub", "type": "output"}`, pngOf(t, 5, 4, alpha), 400},
			{`{"filename": "none.png"}`, mask, 404},
			{`{"filename": "../secret.png"}`, mask, 400},
			{`{"filename": "secret.png", "subfolder": ".."}`, mask, 403},
			{fmt.Sprintf(`{"filename": %q}`, filepath.Join(filepath.Dir(d.cfg.Roots.Output), "secret.png")), mask, 400},
			{`{"filename": "a.png", "subfolder": "sub", "type": "models"}`, mask, 400},
			{`a.png`, mask, 400},
			{``, mask, 400},
		} {
			if status, body := send(c.ref, c.mask); status != c.want {
				t.Errorf("original_ref %s: %d %s, want %d", c.ref, status, body, c.want)
			}
		}
		if status, body := send(`{"filename": "a.png", "subfolder": "sub"}`, []byte("no picture")); status != 400 {
			t.Errorf("a mask that is no picture: %d %s", status, body)
		}
	})
}
