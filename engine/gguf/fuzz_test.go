package gguf

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// FuzzOpenBytes checks that no file makes the reader panic or allocate far more than the file's length, and that
// accepted entries lie inside the file, have the size that their shape implies and can be widened.
func FuzzOpenBytes(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.gguf")
	if err != nil || len(paths) != 2 {
		f.Fatalf("test files: found %v (%v), want 2", paths, err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 2048)]) // the header; mutations of megabytes of data find nothing
	}
	f.Add([]byte(start(2, 2, 0).tensor("none", 8, 0, 0, 5).tensor("q", 12, 0, 256).data(144)))
	f.Add([]byte(start(3, 1, 1).text("comfy.gguf.orig_shape.t").u32(9, 5).u64(2).u32(2, 2).tensor("t", 0, 0, 4).data(16)))
	f.Add([]byte(start(3, 0, 1).text("k").u32(9, 9).u64(2).u32(9).u64(0).u32(8).u64(1).text("x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		file, err := OpenBytes(data)
		runtime.ReadMemStats(&after)
		if used, bound := after.TotalAlloc-before.TotalAlloc, uint64(1<<20+64*len(data)); used > bound {
			t.Fatalf("reading %d bytes allocated %d, bound %d", len(data), used, bound)
		}
		if err != nil {
			return
		}
		total := 0
		for _, name := range file.Names() {
			e, ok := file.Entry(name)
			block, size := e.Type.Block()
			if !ok || e.Len()/block*size != e.Data.Len() {
				t.Fatalf("entry %q: shape %v of %s with %d bytes", name, e.Shape, e.Type, e.Data.Len())
			}
			total += e.Data.Len()
			_, _ = floats(e)
		}
		if total > len(data) {
			t.Fatalf("entries hold %d bytes, the file has %d", total, len(data))
		}
	})
}
