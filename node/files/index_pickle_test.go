package files

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestIndexRunsNoPickle checks that listing a folder with a file of torch.save costs next to nothing: its pickle is a
// program, here one that makes 16 million dictionaries.
func TestIndexRunsNoPickle(t *testing.T) {
	root := t.TempDir()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: "x/data.pkl", Method: zip.Store})
	if err == nil {
		_, err = w.Write(append([]byte("\x80\x02"), bytes.Repeat([]byte{'}'}, 16<<20-100)...))
	}
	if err == nil {
		err = z.Close()
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(root, "upscale_models"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "upscale_models", "x2.pth"), b.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	size := int64(b.Len())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	list := NewIndex(Roots{Models: []string{root}}).Models()
	runtime.ReadMemStats(&after)
	want := NeededFile{Kind: KindUpscale, Name: "x2.pth", Bytes: size}
	if len(list) != 1 || list[0] != want {
		t.Errorf("the folder has %+v, want %+v", list, want)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("listing it allocated %d MiB", n>>20)
	}
}
