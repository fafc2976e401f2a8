package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/models/flux"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/tests/harness"
)

// TestWorkerPeakMemory runs one job on a 280 MB checkpoint in a fresh worker process and compares its high-water mark
// (VmHWM) with its budget: 1.15 times the files, the activations that the plan has measured, and 100 MB for program,
// heap and libraries. Weights are read one matrix at a time, so a second copy of any large part would show. What the
// planner forecasts from the configuration alone, added to what the process took before and to the matrix that is being
// read, must be within 10 %.
func TestWorkerPeakMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: a checkpoint of 280 MB; TestAddressSpace bounds a worker with the demo")
	}
	program, models := harness.Build(t), t.TempDir()
	writeWide(t, filepath.Join(models, "diffusion_models", "wide.safetensors"))
	cmd := exec.Command(program, "worker", "--models", models, "--models", "../examples/demo", "--compute",
		"f32", "--log", "error")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := client.NewFrameClient(out, in, in.Close)
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the worker ended with %v", err)
		}
	}()
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	defer stop()
	if _, err := client.Describe(ctx, c, "VAEDecode"); err != nil { // it answers: its start is over
		t.Fatal(err)
	}
	before := statusBytes(t, cmd.Process.Pid, "VmHWM")
	job := flow(t, change{"1", "unet_name", "wide.safetensors"}, change{"3", "steps", 1}, change{"5", "width", 256},
		change{"5", "height", 256})
	var metrics map[string]any
	end, err := client.Run(ctx, c, &message.RunRequest{ID: "peak", Workflow: job},
		&client.Collector{Event: func(ev message.Event) {
			if ev.Type == message.EventMetrics {
				metrics = ev.Data
			}
		}})
	if err != nil || end.Type != message.EventSuccess {
		t.Fatalf("the job ended with %+v, %v", end, err)
	}
	planned := plannedBytes(t, metrics)
	files := int64(0)
	for _, f := range []string{
		filepath.Join(models, "diffusion_models/wide.safetensors"), "../examples/demo/text_encoders/demo_clip.safetensors",
		"../examples/demo/text_encoders/demo_t5.safetensors", "../examples/demo/vae/demo_ae.safetensors",
	} {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		files += info.Size()
	}
	peak := statusBytes(t, cmd.Process.Pid, "VmHWM")
	bound := files*115/100 + planned + 100<<20
	t.Logf("peak %d MB; files %d MB, planned activations %d MB, bound %d MB", peak>>20, files>>20, planned>>20, bound>>20)
	if peak > bound {
		t.Errorf("the worker's peak is %d MB, want at most %d MB", peak>>20, bound>>20)
	}
	matrix := int64(2 * 7 * wide().Hidden * wide().Hidden) // linear1 of a single-stream block
	forecast := before + matrix + forecastBytes(t)
	t.Logf("forecast %d MB, of which %d MB before the job", forecast>>20, before>>20)
	if ratio := float64(peak) / float64(forecast); ratio < 0.9 || ratio > 1.1 {
		t.Errorf("the worker's peak is %.3f of the forecast, want 0.9 to 1.1", ratio)
	}
	if peak < files {
		t.Errorf("the worker's peak is %d MB, less than the %d MB of weights it must hold: the measurement does not work",
			peak>>20, files>>20)
	}
}

// forecastBytes returns the planner's forecast for the wide model at 256 x 256 with the demo's text on one rank, plus
// the VAE's for decoding.
func forecastBytes(t *testing.T) int64 {
	t.Helper()
	d, err := wide().Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := forecast.Workload{
		Spec: &d.Spec, Y: 32, X: 32, Batch: 1, Text: []int{20, 20}, Branches: []int{0, 1}, Evaluations: 1,
	}
	file, err := weights.Open("../examples/demo/vae/demo_ae.safetensors", engine.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cfg, err := vae.Infer(file.Set(), []byte(file.Metadata()["config"]))
	if err != nil {
		t.Fatal(err)
	}
	memory, err := forecast.MemoryByRank(w, plan.OneRank(), 2, 4)
	if err != nil {
		t.Fatal(err)
	}
	return memory[0].Total() +
		int64(vae.DecodeBytes(cfg, engine.F32, 32, 32))
}

// wide returns a FLUX that takes the demo's text encoders: 1024 wide, 2 double and 4 single blocks, 140 million
// parameters.
func wide() flux.Config {
	return flux.Config{
		Hidden: 1024, Heads: 8, Depth: 2, DepthSingle: 4, Axes: []int{16, 56, 56}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2,
		ContextDim: 128, VectorDim: 128, MLPHidden: 4096,
	}
}

// writeWide writes a checkpoint of wide in bf16.
func writeWide(t *testing.T, path string) {
	t.Helper()
	c := wide()
	described, err := c.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := described.Declare()
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 1<<20)
	for i := 0; i < len(noise); i += 2 {
		noise[i], noise[i+1] = byte(r.Uint32()), 0x3c|byte(r.Uint32())&0x80 // +-0.0078 .. 0.03
	}
	var entries []safetensors.Tensor
	for _, d := range declared {
		data := make([]byte, 2*d.Params())
		for rest := data; len(rest) > 0; {
			rest = rest[copy(rest, noise):]
		}
		entries = append(entries, safetensors.Tensor{
			Name: d.Name, DType: engine.BF16, Shape: d.Shape,
			Data: datafile.Of(data),
		})
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	for _, do := range []func() error{
		func() error { return safetensors.Write(w, map[string]string{"config": string(config)}, entries) }, w.Flush, f.Close,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
}

// plannedBytes returns peak_bytes of the only sampling run in a metrics event.
func plannedBytes(t *testing.T, metrics map[string]any) int64 {
	t.Helper()
	text, err := json.Marshal(metrics)
	if err != nil {
		t.Fatal(err)
	}
	var data struct {
		Stats []struct {
			PeakBytes int64 `json:"peak_bytes"`
		} `json:"stats"`
	}
	if err := json.Unmarshal(text, &data); err != nil || len(data.Stats) != 1 || data.Stats[0].PeakBytes == 0 {
		t.Fatalf("no statistics of one sampling run in %s (%v)", text, err)
	}
	return data.Stats[0].PeakBytes
}

// statusBytes reads a line of /proc/PID/status that is given in kB.
func statusBytes(t *testing.T, pid int, key string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == key+":" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("no %s in the status of process %d", key, pid)
	return 0
}
