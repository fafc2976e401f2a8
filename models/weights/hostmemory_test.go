//go:build linux

package weights_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

// resident returns a field of this process's status in bytes: RssAnon is private memory, RssFile the mapped pages of
// files, which processes share. It returns 0 if the kernel does not report the field.
func resident(field string) int64 {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		var kib int64
		if _, err := fmt.Sscanf(line, field+": %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}

type wideNet struct {
	Layer []wideLayer `weight:"layers"`
}

type wideLayer struct {
	W *engine.Weight `weight:"w,nobias" shape:"N,K"`
}

// TestHostMemoryWhileLoading loads a file twice concurrently, as two workers do, and watches the memory of the process
// meanwhile. Each load may take little more than its packed weights, so no second copy of the file ever exists, and the
// pages of the file, which both share, must be released.
func TestHostMemoryWhileLoading(t *testing.T) {
	if testing.Short() {
		t.Skip("short: writes a file of 128 MiB")
	}
	const rows, columns, count, slack = 1024, 8192, 8, 48 << 20
	const size = 2 * rows * columns * count
	path := filepath.Join(t.TempDir(), "wide.safetensors")
	writeRandom(t, path, rows, columns, count)
	debug.FreeOSMemory()
	before := resident("RssAnon")
	if before == 0 || resident("RssFile") == 0 {
		t.Skip("NOT RUN: this kernel does not tell RssAnon and RssFile")
	}
	var peak, mapped atomic.Int64
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			peak.Store(max(peak.Load(), resident("RssAnon")))
			mapped.Store(max(mapped.Load(), resident("RssFile")))
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var wg sync.WaitGroup
	nets := [2]wideNet{{make([]wideLayer, count)}, {make([]wideLayer, count)}}
	held, errs := [2]*weights.Loaded{}, [2]error{}
	for i := range nets {
		wg.Go(func() {
			f, err := weights.Open(path, engine.BF16)
			if err != nil {
				errs[i] = err
				return
			}
			defer func() { _ = f.Close() }()
			held[i], errs[i] = weights.Load(goldenrun.NewOps(), f.Set(), &nets[i], weights.Options{
				Model: "wide", Dims: map[string]int{"N": rows, "K": columns},
			})
		})
	}
	wg.Wait()
	close(stop)
	<-watched
	packed := int64(0)
	for i := range held {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		packed += held[i].Bytes()
	}
	took := max(peak.Load(), resident("RssAnon")) - before
	t.Logf("%d MiB of own memory for %d MiB of packed weights of a file of %d MiB; %d MiB of files mapped at most",
		took>>20, packed>>20, size>>20, mapped.Load()>>20)
	if took < packed/2 || took > packed+slack {
		t.Errorf("loading took %d MiB, want the %d MiB of packed weights and less than %d MiB more", took>>20, packed>>20,
			slack>>20)
	}
	if n := mapped.Load(); n > size {
		t.Errorf("%d MiB of files were resident in two mappings of %d MiB, of which read pages are to be given back", n>>20,
			size>>20)
	}
	for _, h := range held {
		h.Close()
	}
}

// writeRandom writes a file of random bf16 matrices, one after the other.
func writeRandom(t *testing.T, path string, rows, columns, count int) {
	t.Helper()
	data := make([]byte, 2*rows*columns)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(data); err != nil {
		t.Fatal(err)
	}
	var list []safetensors.Entry
	for i := range count {
		list = append(list, safetensors.Entry{
			Name: fmt.Sprintf("layers.%d.w.weight", i), DType: engine.BF16, Shape: []int{rows, columns}, Data: data,
		})
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(f, nil, list); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
