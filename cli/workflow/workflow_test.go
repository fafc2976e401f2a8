package workflow

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// TestWorkflowsInPictures reads a workflow behind a byte order mark, and from the EXIF data of a WebP and of a JPEG in
// the form of SaveAnimatedWEBP: tag 0x0110 "prompt:{...}".
func TestWorkflowsInPictures(t *testing.T) {
	const graph = `{"7": {"class_type": "EmptyImage", "inputs": {"width": 64}}}`
	text := "prompt:" + graph + "\x00"
	exif := "II*\x00\x08\x00\x00\x00\x01\x00\x10\x01\x02\x00"
	exif += string(binary.LittleEndian.AppendUint32(nil, uint32(len(text)))) + "\x1a\x00\x00\x00\x00\x00\x00\x00" + text
	if len(exif)%2 != 0 {
		exif += "\x00"
	}
	le := func(n int) string { return string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }
	app1 := "Exif\x00\x00" + exif
	for name, data := range map[string]string{
		"mark.json": "\xef\xbb\xbf" + graph,
		"a.webp":    "RIFF" + le(len(exif)+12) + "WEBPEXIF" + le(len(exif)) + exif,
		"a.jpg":     "\xff\xd8\xff\xe1" + string(binary.BigEndian.AppendUint16(nil, uint16(len(app1)+2))) + app1 + "\xff\xd9",
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		_, w, err := Read(path, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if w.Class("7") != "EmptyImage" {
			t.Errorf("%s: got nodes %v", name, w.IDs())
		}
	}
}
