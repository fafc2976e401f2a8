package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/cli/plan"
	"patchbay/daemon"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/safetensors"
	"patchbay/tests/scratch"
)

// deepBlocks is how many single blocks the model of deepGGUF has.
const deepBlocks = 120

// deepGGUF writes the demo's model with many more copies of its first single block, matrices in Q8_0, and returns the
// file with the bytes of the tensors in it and those of the same as f32.
func deepGGUF(t *testing.T) (path string, stored, wide int64) {
	t.Helper()
	from, err := safetensors.Open("../../examples/demo/diffusion_models/demo_flux.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = from.Close() })
	var tensors []ggufwrite.Tensor
	add := func(name string, like ggufwrite.Tensor) {
		like.Name = name
		tensors, stored = append(tensors, like), stored+int64(len(like.Data))
		n := int64(4)
		for _, d := range like.Shape {
			n *= int64(d)
		}
		wide += n
	}
	for _, name := range from.Names() {
		e, _ := from.Entry(name)
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		kind := gguf.F32
		if len(e.Shape) == 2 {
			kind = gguf.Q8v0
		}
		one := ggufwrite.Tensor{Type: kind, Shape: e.Shape, Data: ggufwrite.Quantise(kind, v)}
		rest, first := strings.CutPrefix(name, "single_blocks.0.")
		switch {
		case first:
			for n := range deepBlocks {
				add(fmt.Sprintf("single_blocks.%d.%s", n, rest), one)
			}
		case !strings.HasPrefix(name, "single_blocks."):
			add(name, one)
		}
	}
	config := regexp.MustCompile(`"depth_single_blocks": \d+`).ReplaceAllString(from.Metadata()["config"],
		fmt.Sprintf(`"depth_single_blocks": %d`, deepBlocks))
	path = filepath.Join(t.TempDir(), "deep.gguf")
	scratch.Write(t, path, ggufwrite.File(map[string]any{"general.architecture": "flux", "config": config}, tensors))
	return path, stored, wide
}

// onProcessors returns the settings of one rank on the processors that may take so much memory.
func onProcessors(memory string) daemon.Config {
	return daemon.Config{
		Devices: "cpu", Compute: "auto", Placement: daemon.PlacementThreads, Transport: daemon.TransportAuto,
		Graphs: daemon.GraphsOn, Memory: memory,
	}
}

// TestStepRunsWhatTheFileHolds checks that bench step keeps a quantized file in its own form, as serve does, so that it
// runs within memory that its f32 form would exceed, and that a file that does not fit is refused with what it needs
// and what may be taken, before any of it is read.
func TestStepRunsWhatTheFileHolds(t *testing.T) {
	path, stored, wide := deepGGUF(t)
	measure := func(memory, split string) (*report, error) {
		f := stepFlags{
			timing:  timing{runs: 1},
			Trial:   plan.Trial{Model: path, Size: "64x64", Compute: "auto", Steps: 1, Plan: split},
			devices: onProcessors(memory),
		}
		return f.measure(context.Background())
	}
	const room = 192 << 20
	if stored > room/2 || wide < room {
		t.Fatalf("the file has %d bytes, %d as f32: room for %d tells nothing", stored, wide, room)
	}
	debug.FreeOSMemory() // what this process holds already is part of --memory
	limit := fmt.Sprintf("%dM", (resident(t)+room)>>20)
	r, err := measure(limit, "")
	if err != nil {
		t.Fatalf("within %s: %v", limit, err)
	}
	held, ok := r.Extra["weight_bytes"].(int64)
	if !ok || held < stored/2 || held > stored+stored/4 {
		t.Errorf("the weights of a file of %d bytes take %v", stored, r.Extra["weight_bytes"])
	}
	_, err = measure("48M", "stream=off")
	need := fmt.Sprintf("take %d MB", held>>20)
	if err == nil || !strings.Contains(err.Error(), "48 MB are allowed") || !strings.Contains(err.Error(), need) {
		t.Errorf("within 48M: %v, want a refusal that says %q and 48 MB", err, need)
	}
}

// resident returns how much memory this process holds.
func resident(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var mapped, pages int64
	if _, err := fmt.Sscan(string(text), &mapped, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// TestBenchmarksAreBounded checks that what computes outside a worker is bounded by default too, not by --memory alone.
func TestBenchmarksAreBounded(t *testing.T) {
	c := onProcessors("")
	cfg, release, err := c.BoundEngine(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if cfg.MemoryBytes <= 0 {
		t.Errorf("weights may take %d bytes, want a limit", cfg.MemoryBytes)
	}
	if flags := stepCmd().Flags(); flags.Lookup("compute").DefValue != "auto" || flags.Lookup("memory") == nil {
		t.Error("bench step computes in another type than serve, or has no --memory")
	}
}
