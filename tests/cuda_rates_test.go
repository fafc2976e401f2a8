//go:build fakegpu

package tests

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"patchbay/parallel/hardware"
	"patchbay/tests/fakegpu"
	"patchbay/tests/harness"
)

// TestCUDABenchComm checks that bench comm between three fake GPUs measures what each pair does by the clock of the
// fake, with our copies and with NCCL, and saves it. What plan predicts for two of them follows from their pair.
func TestCUDABenchComm(t *testing.T) {
	driver := fakegpu.Library(t)
	program, _ := smallDemo(t)
	env := []string{
		"FAKEGPU_DEVICES=3", "FAKEGPU_LINKS=0-1:1,0-2:0.1,1-2:0.02", ncclOf(driver), // GB/s
	}
	want := map[[2]string]float64{ // all fake devices share one clock: the directions of a link take turns
		{"cuda:0", "cuda:1"}: 0.5e9, {"cuda:0", "cuda:2"}: 0.05e9, {"cuda:1", "cuda:2"}: 0.01e9,
	}
	for _, transport := range []string{"local", "nccl"} {
		file := filepath.Join(t.TempDir(), "rates.json")
		out, err := onFake(t, driver, program, env, "bench", "comm", "--devices", "cuda:0-2", "--transport", transport,
			"--size", "1M", "--warmup", "1", "--runs", "3", "--save", file)
		if err != nil || strings.Contains(out, "fakegpu:") {
			t.Fatalf("%s: %v\n%s", transport, err, out)
		}
		for _, exchange := range []string{"all-to-all", "ring", "all-gather", "all-reduce", "pipeline message"} {
			if !strings.Contains(out, exchange+", 1024 KiB a rank") {
				t.Errorf("%s: %s was not measured:\n%s", transport, exchange, out)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := hardware.ReadMachine(text)
		if err != nil {
			t.Fatal(err)
		}
		found := map[[2]string]float64{}
		for _, p := range m.Pairs {
			found[[2]string{p.A, p.B}] = p.Bandwidth
			if expected := want[[2]string{p.A, p.B}]; !(math.Abs(p.Bandwidth/expected-1) < 0.1) || !(p.Latency > 0) {
				t.Errorf("%s: %s and %s: %.3g bytes a second and %.3g s, want %.3g and some", transport, p.A, p.B, p.Bandwidth,
					p.Latency, expected)
			}
		}
		if len(found) != len(want) || !strings.HasPrefix(m.Link.Source, "patchbay bench comm") ||
			!(m.Link.RingFraction > 0 && m.Link.RingFraction <= 1) || !strings.Contains(m.Device.Source, "not measured") ||
			m.Device.Name != "Fake GPU" {
			t.Errorf("%s: kept %s", transport, text)
		}
		exchange := map[string]float64{}
		for _, devices := range []string{"cuda:0-1", "cuda:1-2"} {
			out, err = onFake(t, driver, program, env, "plan", "--model", "sd3-medium", "--devices", devices, "--plan",
				"ulysses=2", "--rates", file, "--json")
			var r struct {
				Rates string
				Ranks []struct{ Exchange float64 }
			}
			if err == nil {
				err = json.Unmarshal([]byte(out), &r)
			}
			if err != nil || len(r.Ranks) != 2 || !strings.Contains(r.Rates, "patchbay bench comm") ||
				!strings.Contains(r.Rates, "row 3090 of the built-in table, which has no row for a Fake GPU: not measured") {
				t.Fatalf("%s: plan: %v\n%s", transport, err, out)
			}
			exchange[devices] = r.Ranks[0].Exchange
		}
		far, near := exchange["cuda:1-2"], exchange["cuda:0-1"]
		ratio := found[[2]string{"cuda:0", "cuda:1"}] / found[[2]string{"cuda:1", "cuda:2"}]
		if !(math.Abs(far/near/ratio-1) < 0.05) { // much is sent, so latencies hardly count
			t.Errorf("%s: exchanges of the two pairs are predicted with %.4g and %.4g s, and measured as 1 to %.1f", transport,
				near, far, ratio)
		}
	}
	for args, says := range map[string]string{
		"--devices cuda:0":                        "want two GPUs or more",
		"--devices cuda:0-1 --ranks 2":            "a GPU is one rank",
		"--devices cuda:0-1 --size 1K":            "want 64K to 1G",
		"--devices cuda:0-1 --placement children": "want threads",
	} {
		out, err := onFake(t, driver, program, env, append([]string{"bench", "comm"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(out, says) {
			t.Errorf("bench comm %s: %v, want %q in\n%s", args, err, says, out)
		}
	}
}

// TestCUDAJobsBeside checks that waiting jobs run side by side on two fake GPUs, that a lone job gets both where that
// is faster, and that the pictures are those of the CPU.
func TestCUDAJobsBeside(t *testing.T) {
	driver := fakegpu.Library(t)
	program := harness.Build(t)
	alone := harness.Start(t, program, "", "--devices", "cpu", "--compute", "f32")
	t.Setenv("LD_LIBRARY_PATH", driver)
	t.Setenv("FAKEGPU_DEVICES", "2")
	t.Setenv("PATCHBAY_CUDA_LIBS", filepath.Join(driver, "nccl"))
	m, err := hardware.NewMachine("H100")
	if err != nil {
		t.Fatal(err)
	}
	m.Device.GEMM, m.Device.Attention, m.Device.Traffic = 1e9, 1e9, 1e9 // two devices are worth it for a small picture
	m.Device.Launch, m.Device.Handover = 0, 0
	text, err := m.JSON()
	rates := filepath.Join(t.TempDir(), "rates.json")
	if err == nil {
		err = os.WriteFile(rates, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := harness.Start(t, program, "", "--devices", "cuda:0-1", "--schedule", "auto", "--compute", "f32", "--rates", rates)
	const jobs = 3
	var pictures [jobs + 1][]byte
	var ran [jobs + 1]map[string]any
	var all sync.WaitGroup
	for i := range jobs {
		all.Go(func() { pictures[i], ran[i] = small(s, fmt.Sprint("beside", i), "", i) })
	}
	all.Wait()
	pictures[jobs], ran[jobs] = small(s, "lone", "", jobs)
	for i, got := range pictures {
		want, _ := small(alone, fmt.Sprint("alone", i), "", i)
		if t.Failed() {
			return
		}
		if worst := channelsApart(t, got, want); worst > 1 {
			t.Errorf("job %d differs from the processors by %d levels, want at most 1", i, worst)
		}
	}
	// A share begins with the lowest free device: a job on the second device alone began beside another.
	var on [jobs + 1]string
	for i, metrics := range ran {
		text, err := json.Marshal(metrics)
		if err != nil {
			t.Fatal(err)
		}
		on[i] = fmt.Sprintf("%s", regexp.MustCompile(`cuda:\d`).FindAll(text, -1))
	}
	if on[jobs] != "[cuda:0 cuda:1]" {
		t.Errorf("the job that was alone ran on %s, want both devices", on[jobs])
	}
	if !slices.Contains(on[:jobs], "[cuda:1]") {
		t.Errorf("jobs that waited ran on %s: no two began beside each other", on[:jobs])
	}
	if err := s.Stop(); err != nil || strings.Contains(s.Log.String(), "fakegpu:") {
		t.Errorf("%v\n%s", err, s.Log)
	}
}

// TestCUDADevicesThatDiffer checks two kinds of fake GPUs, the first of which is slower and has less memory: bench step
// measures both into one file, serve puts the fast one first and gives each its share of the work, and the picture is
// that of one rank on the CPU. Without the file, plan uses rows of the table and says so.
func TestCUDADevicesThatDiffer(t *testing.T) {
	driver := fakegpu.Library(t)
	program, _ := smallDemo(t)
	for name, value := range map[string]string{
		"LD_LIBRARY_PATH": driver, "FAKEGPU_DEVICES": "2", "FAKEGPU_NAMES": "Slow GPU,Fast GPU", "FAKEGPU_SLOW": "4,1",
		"FAKEGPU_MEMORY": "4294967296,8589934592",
	} {
		t.Setenv(name, value)
	}
	file := filepath.Join(t.TempDir(), "rates.json")
	for _, device := range []string{"cuda:0", "cuda:1"} {
		out, err := onFake(t, driver, program, nil, "bench", "step", "--devices", device, "--size", "64x64", "--steps", "2",
			"--warmup", "0", "--runs", "1", "--compute", "f32", "--save", file)
		if err != nil || strings.Contains(out, "fakegpu:") {
			t.Fatalf("bench step: %v\n%s", err, out)
		}
	}
	want, _ := small(harness.Start(t, program, "", "--devices", "cpu", "--compute", "f32"), "here", "", 7)
	s := harness.Start(t, program, "", "--devices", "cuda:0-1", "--rates", file, "--compute", "f32")
	got, metrics := small(s, "both", "ulysses=2", 7)
	if t.Failed() {
		return
	}
	if worst := channelsApart(t, got, want); worst > 1 {
		t.Errorf("differs from the processors by %d levels, want at most 1", worst)
	}
	text, err := json.Marshal(metrics)
	if err != nil {
		t.Fatal(err)
	}
	speeds := regexp.MustCompile(`speeds=100:(\d+)"`).FindSubmatch(text)
	if speeds == nil {
		t.Fatalf("the job ran by equal shares: %s", text)
	}
	if slow, _ := strconv.Atoi(string(speeds[1])); slow < 20 || slow > 35 { // 4 to 1 by the clock of the fake
		t.Errorf("ran by speeds 100 to %d, want about 25: %s", slow, text)
	}
	log := s.Log.String()
	if !strings.Contains(log, "Fast GPU: patchbay bench step") || strings.Contains(log, "fakegpu:") {
		t.Errorf("the log does not tell of the rates:\n%s", log)
	}
	t.Setenv("FAKEGPU_NAMES", "NVIDIA L40,NVIDIA H100 PCIe")
	out, err := onFake(t, driver, program, nil, "plan", "--model", "sd3-medium", "--devices", "cuda:0-1")
	for _, part := range []string{
		"1xNVIDIA H100 PCIe-pcie4,1xNVIDIA L40-pcie4\n",
		"NVIDIA H100 PCIe: row H100 of the built-in table, by its name: not measured",
		"NVIDIA L40: row L40 of the built-in table, by its name: not measured",
	} {
		if err != nil || !strings.Contains(out, part) {
			t.Errorf("plan: %v, want %q in\n%s", err, part, out)
		}
	}
}
