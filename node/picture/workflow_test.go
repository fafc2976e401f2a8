package picture

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/node/pyjson"
)

// comfyUIFile returns a file of testdata/comfyui: those that the functions of ComfyUI 0.33.0 (comfy_api/latest/_ui.py,
// ImageSaveHelper) and Pillow 13.0 wrote for one prompt, two pictures of 8 x 6 and the extra_pnginfo workflow, more and
// n. exif.jpg has the same EXIF data.
func comfyUIFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "comfyui", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestWorkflowsOfComfyUIsFiles reads the workflows of all kinds of pictures that ComfyUI saves: texts of PNG, chunks
// "comf" of animated PNG, and EXIF of WebP, where 0x0110 (Model) has the prompt, 0x010f (Make) the workflow, and the
// tags below it the other extra_pnginfo.
func TestWorkflowsOfComfyUIsFiles(t *testing.T) {
	const (
		prompt = `{"1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 2, "color": 255}}, ` +
			`"2": {"class_type": "SaveAnimatedWEBP", "inputs": {"images": ["1", 0], "filename_prefix": "caf\u00e9: \u72d0"}}}`
		workflow = `{"nodes": [{"id": 1, "type": "EmptyImage", "widgets_values": [8, 8, 2, 255]}], "links": [], ` +
			`"version": 0.4, "extra": {"note": "a:b \u72d0"}}`
	)
	for name, frames := range map[string]int{
		"plain.png": 1, "animated.png": 2, "still.webp": 1, "lossy.webp": 1, "animated.webp": 2, "noprompt.webp": 1,
		"exif.jpg": 1,
	} {
		data := comfyUIFile(t, name)
		got, extra, err := WorkflowFrom(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := prompt
		if strings.HasPrefix(name, "noprompt") {
			want = workflow
		}
		if string(got) != want {
			t.Errorf("%s: the graph is %s, want %s", name, got, want)
		}
		texts := fmt.Sprintf("%s, %s, %s, %d", pyjson.Dump(extra["workflow"]), pyjson.Dump(extra["more"]),
			pyjson.Dump(extra["n"]), len(extra))
		if want := workflow + `, {"seed": 7}, 7, 3`; texts != want {
			t.Errorf("%s: the other texts are %s, want %s", name, texts, want)
		}
		if im, _, err := Decode(data); err != nil || im.B != frames || im.X != 8 || im.Y != 6 {
			t.Errorf("%s: decoded as %+v, %v; want %d pictures of 8 x 6", name, im, err, frames)
		}
	}
}

// TestTextsOfEXIFMayBeDamaged cuts EXIF data after every byte, lets its offsets point anywhere, and lets all texts be
// the same long one: nothing is read twice.
func TestTextsOfEXIFMayBeDamaged(t *testing.T) {
	whole := exif("WebP", comfyUIFile(t, "still.webp"))
	for n := range whole {
		for _, text := range exifTexts(whole[:n]) {
			if !strings.Contains(string(whole), text.value) {
				t.Fatalf("cut after %d bytes: read %q", n, text.value)
			}
		}
		for _, b := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			damaged := []byte(strings.Clone(string(whole)))
			damaged[n] = b
			exifTexts(damaged)
		}
	}
	const entries = 500
	same := []byte("MM\x00*\x00\x00\x00\x08\x01\xf4")
	for range entries {
		same = append(same, "\x01\x0f\x00\x02\x00\x00\x17\x7a\x00\x00\x00\x00"...)
	}
	total := 0
	for _, text := range exifTexts(same) {
		total += len(text.key) + len(text.value)
	}
	if total > len(same) {
		t.Errorf("%d bytes of texts were read from %d bytes", total, len(same))
	}
}
