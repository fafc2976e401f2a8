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
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

// resident returns the private memory of this process in bytes, 0 if the kernel does not report it.
func resident() int64 {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}

// TestHostMemoryWhileLoading loads a file twice concurrently, as two workers do, and watches the memory of the process
// meanwhile. Each load may take little more than its packed weights and one matrix, so no second copy of the file ever
// exists.
func TestHostMemoryWhileLoading(t *testing.T) {
	if testing.Short() {
		t.Skip("short: writes a file of 128 MiB")
	}
	const rows, columns, count = 1024, 8192, 8
	const slack = 48<<20 + 2*2*rows*columns // each load has one matrix of the file in memory
	const size = 2 * rows * columns * count
	path := filepath.Join(t.TempDir(), "wide.safetensors")
	writeRandom(t, path, rows, columns, count)
	debug.FreeOSMemory()
	before := resident()
	if before == 0 {
		t.Skip("NOT RUN: this kernel does not tell RssAnon")
	}
	var peak atomic.Int64
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			peak.Store(max(peak.Load(), resident()))
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
	took := max(peak.Load(), resident()) - before
	t.Logf("%d MiB of memory for %d MiB of packed weights of a file of %d MiB", took>>20, packed>>20, size>>20)
	if took < packed/2 || took > packed+slack {
		t.Errorf("loading took %d MiB, want the %d MiB of packed weights and less than %d MiB more", took>>20, packed>>20,
			slack>>20)
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
	var list []safetensors.Tensor
	for i := range count {
		list = append(list, safetensors.Tensor{
			Name: fmt.Sprintf("layers.%d.w.weight", i), DType: engine.BF16, Shape: []int{rows, columns}, Data: datafile.Of(data),
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
