//go:build fakegpu

package tests

import (
	"context"
	"errors"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/fakegpu"
	"patchbay/tests/harness"
)

// ncclOf returns the environment setting by which the program finds the fake NCCL.
func ncclOf(driver string) string { return "PATCHBAY_CUDA_LIBS=" + filepath.Join(driver, "nccl") }

// onFake runs the program with the driver of the fake device in the loader's path, and returns what it printed.
func onFake(t *testing.T, driver, program string, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+driver), env...)
	cmd.WaitDelay = time.Second
	timer := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := harness.Printed(cmd)
	return string(out), err
}

// smallDemo makes a folder where the demo beside the program draws pictures of 64x64 pixels in two steps.
func smallDemo(t *testing.T) (program, flow string) {
	t.Helper()
	dir := t.TempDir()
	program = filepath.Join(dir, "bin", "patchbay")
	examples := filepath.Join(dir, "examples")
	text, err := os.ReadFile("../examples/demo.json")
	for _, d := range []string{filepath.Dir(program), examples} {
		if err == nil {
			err = os.Mkdir(d, 0o700)
		}
	}
	if err == nil {
		err = os.Link(harness.Build(t), program)
	}
	if err == nil {
		err = os.Symlink(harness.DemoModels(t), filepath.Join(examples, "demo"))
	}
	small := strings.NewReplacer(`"width": 128, "height": 128`, `"width": 64, "height": 64`, `"steps": 12`, `"steps": 2`)
	flow = filepath.Join(examples, "demo.json")
	if err == nil {
		err = os.WriteFile(flow, []byte(small.Replace(string(text))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return program, flow
}

// pixels reads the channels of a picture of 64x64 pixels, 0 to 255.
func pixels(t *testing.T, path string) (levels []int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	img, err := png.Decode(f)
	if err != nil || img.Bounds().Dx() != 64 || img.Bounds().Dy() != 64 {
		t.Fatalf("%s: %v, want a picture of 64x64", path, err)
	}
	return channels(img)
}

// TestCUDADemo checks that the demo on a fake GPU draws the picture of the CPU, to within one level of 255, and frees
// everything it took: the driver reports what is missing. Two ranks on one GPU and on two, in one process and in two,
// draw the same picture. Without a place for the second one they are refused.
func TestCUDADemo(t *testing.T) {
	driver := fakegpu.Library(t)
	program, flow := smallDemo(t)
	dir := t.TempDir()
	var cpu []int
	broken := filepath.Join(dir, "broken") // the first launch breaks the device, and the job goes to another worker
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ devices, ranks, env, transport, placement string }{
		{"cpu", "1", "", "auto", "threads"},
		{"cuda:0", "1", "", "auto", "threads"},
		{"cuda:0,0", "2", "", "auto", "threads"},
		{"cuda:0-1", "2", "", "local", "threads"},
		{"cuda:0-1", "2", "", "nccl", "threads"},
		{"cuda:0-1", "2", "", "nccl", "children"},
		{"cuda:0", "1", "FAKEGPU_BREAK=" + broken, "auto", "threads"},
	} {
		file := filepath.Join(dir, c.devices+".png")
		out, err := onFake(t, driver, program, []string{"FAKEGPU_DEVICES=2", c.env, ncclOf(driver)}, "demo", "--devices",
			c.devices, "--ranks", c.ranks, "--transport", c.transport, "--placement", c.placement, "--out", file)
		complaints := strings.Count(out, "fakegpu:")
		switch {
		case err != nil, c.env == "" && complaints > 0,
			c.env != "" && (!strings.Contains(out, "breaks the device") || !strings.Contains(out, "the worker ends")):
			t.Fatalf("demo --devices %s %s: %v\n%s", c.devices, c.env, err, out)
		}
		picture := pixels(t, file)
		if cpu == nil {
			cpu = picture
		}
		if worst := apart(picture, cpu); worst > 1 || slices.Max(picture)-slices.Min(picture) < 50 {
			t.Errorf("%s: differs from the processors by %d levels, want at most 1", c.devices, worst)
		}
	}
	// the same with the denoise loop, the text encoders and the autoencoder in bf16
	out, err := onFake(t, driver, program, []string{"PATCHBAY_MODELS=" + harness.DemoModels(t)}, "run", flow, "--local",
		"--devices", "cuda:0", "--out", dir)
	if err != nil || strings.Contains(out, "fakegpu:") {
		t.Fatalf("run: %v\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "demo_*.png"))
	if err != nil || len(made) != 1 {
		t.Fatalf("run has made %q, %v", made, err)
	}
	sum, far := 0, 0
	for i, v := range pixels(t, made[0]) {
		d := max(v-cpu[i], cpu[i]-v)
		sum += d
		if d > 6 {
			far++
		}
	}
	if n := len(cpu); sum == 0 || sum > n || 50*far > n { // measured: 0.66 levels and 0.6 %; edges move
		t.Errorf("bf16: differs from the processors by %.3g levels on average, by more than 6 in %d of %d channels; want at "+
			"most 1 and 2 %%, and some", float64(sum)/float64(n), far, n)
	}
	out, err = onFake(t, driver, program, nil, "demo", "--devices", "cuda:0", "--plan", "ulysses=2")
	if err == nil || !strings.Contains(out, "over 2 ranks, and there are places for 1: cuda:0 (") ||
		strings.Contains(out, "fakegpu:") {
		t.Errorf("a plan of two ranks: %v\n%s", err, out)
	}
	out, err = onFake(t, driver, program, []string{"PATCHBAY_MODELS=" + harness.DemoModels(t)}, "run", flow, "--local",
		"--devices", "cuda:0",
		"--device-memory", "5M")
	if err == nil || !strings.Contains(out, "5.24 MB are free on cuda:0") {
		t.Errorf("a model on 5 MB: %v\n%s", err, out)
	}
	for count, engine := range map[string]string{"2": "cuda", "0": "cpu/"} { // the default is what the machine has
		out, err = onFake(t, driver, program, []string{"FAKEGPU_DEVICES=" + count}, "bench", "step", "--size", "64x64",
			"--steps", "3", "--warmup", "0", "--runs", "1", "--json", "--compute", "bf16")
		if products := regexp.MustCompile(`"linear by cuBLASLt": ?[1-9]`).MatchString(out); products != (engine == "cuda") {
			t.Errorf("bench step with %s GPUs: products by cuBLASLt: %t\n%s", count, products, out)
		}
		if attended := regexp.MustCompile(`"attention by cuDNN": ?[1-9]`).MatchString(out); attended != (engine == "cuda") {
			t.Errorf("bench step with %s GPUs: attention by cuDNN: %t\n%s", count, attended, out)
		}
		if again := regexp.MustCompile(`"evaluations by graphs": ?2`).MatchString(out); again != (engine == "cuda") {
			t.Errorf("bench step with %s GPUs: the last two steps as graphs: %t\n%s", count, again, out)
		}
		made := regexp.MustCompile(`"kernels":\s*{\s*"cuda:0":\s*"code for sm_86, loaded in [\d.]+ s"`)
		if how := made.MatchString(out); how != (engine == "cuda") {
			t.Errorf("bench step with %s GPUs: how the kernels were loaded: %t\n%s", count, how, out)
		}
		if err != nil || !strings.Contains(out, `"engine": "`+engine) && !strings.Contains(out, `"engine":"`+engine) ||
			strings.Contains(out, "fakegpu:") {
			t.Errorf("bench step with %s GPUs: %v\n%s", count, err, out)
		}
	}
}

// TestCUDARefusals checks that bad values of device options are refused, with the good ones, before anything is
// started.
func TestCUDARefusals(t *testing.T) {
	driver := fakegpu.Library(t)
	program, flow := smallDemo(t)
	for _, c := range []struct{ env, devices, says string }{
		{"", "cuda:1", "there is no such GPU: want cpu, cuda:0 (Fake GPU)"},
		{"", "cuda", "want cuda:N"},
		{"", "cuda:3-1", "want cuda:N"},
		{"FAKEGPU_DEVICES=2", "cuda:0-2", "there is no such GPU: want cpu, cuda:0 (Fake GPU), cuda:1 (Fake GPU)"},
		{"FAKEGPU_DEVICES=0", "cuda:0", "CUDA_ERROR_NO_DEVICE"},
		{"FAKEGPU_MAJOR=7", "cuda:0", "Fake GPU has compute capability 7.6; 8.0 is the least that works: want cpu"},
		{"FAKEGPU_DRIVER=12020", "cuda:0", "the driver serves CUDA 12.2; the kernels need 12.4, driver 550 or newer: " +
			"want cpu"},
	} {
		commands := []string{"serve"}
		if c.devices == "cuda:1" {
			commands = []string{"serve", "worker", "demo", "bench step", "run --local " + flow}
		}
		for _, command := range commands {
			args := append(strings.Fields(command), "--devices", c.devices)
			out, err := onFake(t, driver, program, []string{c.env}, args...)
			var code *exec.ExitError
			if !errors.As(err, &code) || code.ExitCode() != 2 || !strings.Contains(out, c.says) {
				t.Errorf("%s %s --devices %s: %v, want exit code 2 and %q\n%s", c.env, command, c.devices, err, c.says, out)
			}
		}
	}
	for _, c := range []struct{ devices, transport, env, says string }{
		{"cuda:0,0", "nccl", "", "ranks 0 and 1 are both on cuda:0, and NCCL takes one rank a GPU: want auto or local"},
		{"cuda:0-1", "nccl", "PATCHBAY_CUDA_LIBS=off", "NCCL was not found"},
		{"cuda:0-1", "nccl", "FAKEGPU_NCCL=21005", "is version 2.10.5; 2.18.0 is the least that is used: want auto or local"},
		{"cpu", "nccl", "", "NCCL is for GPUs, and --devices is cpu"},
		{"cuda:0", "tcp", "", "--transport tcp: want auto, local or nccl"},
	} {
		out, err := onFake(t, driver, program, []string{"FAKEGPU_DEVICES=2", ncclOf(driver), c.env}, "serve", "--devices",
			c.devices, "--transport", c.transport)
		var code *exec.ExitError
		if !errors.As(err, &code) || code.ExitCode() != 2 || !strings.Contains(out, c.says) {
			t.Errorf("--devices %s --transport %s: %v, want exit code 2 and %q\n%s", c.devices, c.transport, err, c.says, out)
		}
	}
	out, err := onFake(t, driver, program, nil, "serve", "--devices", "cuda:0", "--graphs", "yes")
	if err == nil || !strings.Contains(out, "--graphs yes: want on or off") {
		t.Errorf("--graphs yes: %v\n%s", err, out)
	}
	out, err = onFake(t, t.TempDir(), program, nil, "serve", "--devices", "cuda:0")
	if err == nil || !strings.Contains(out, "no NVIDIA driver") && !strings.Contains(out, "no such GPU") {
		t.Errorf("without the fake: %v\n%s", err, out)
	}
	out, err = onFake(t, driver, program, nil, "serve", "--devices", "cuda:0", "--workers", "2")
	if err == nil || !strings.Contains(out, "one worker uses a GPU") {
		t.Errorf("two workers: %v\n%s", err, out)
	}
}

// TestCUDADoctor checks that doctor lists the driver and the GPUs, and what cannot be used.
func TestCUDADoctor(t *testing.T) {
	driver := fakegpu.Library(t)
	program := harness.Build(t)
	alone := t.TempDir() // the driver without libraries
	if err := os.Symlink(filepath.Join(driver, "libcuda.so.1"), filepath.Join(alone, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ env, says string }{
		{"FAKEGPU_DEVICES=2", "ok    driver   libcuda.so.1, CUDA 12.4\nok    gpu      cuda:0, Fake GPU, compute " +
			"capability 8.6, 8192 MiB; use it " +
			"with --devices cuda:0\nok    gpu      cuda:1, Fake GPU"},
		{"FAKEGPU_MAJOR=7", "note  gpu      cuda:0: Fake GPU has compute capability 7.6; 8.0 is the least that works: it " +
			"is not used"},
		{"", "ok    kernels  cuda:0: code for sm_86, loaded in "},
		{"FAKEGPU_MAJOR=11", "ok    kernels  cuda:0: PTX, which the driver compiled in "},
		{"CUDA_FORCE_PTX_JIT=1", "note  kernels  cuda:0: PTX, which the driver compiled in "},
		{"CUDA_FORCE_PTX_JIT=1 CUDA_DISABLE_PTX_JIT=1", "wrong kernels  cuda:0: load attend: cuModuleLoadData: "},
		{"FAKEGPU_DRIVER=12020", "note  gpu      cuda:0: the driver serves CUDA 12.2"},
		{"FAKEGPU_DEVICES=0", "everything runs on the processors"},
		{ncclOf(driver), "ok    library  NCCL 2.21.5, "},
		{ncclOf(driver) + " FAKEGPU_NCCL=21005", "is version 2.10.5; 2.18.0 is the least that is used: ranks copy from each"},
		{"", "ok    library  cuBLASLt 12.4.5, " + driver + "/libcublasLt.so.12: linear layers in bf16\n"},
		{"FAKEGPU_CUBLASLT=110803", "note  library  cuBLASLt cannot be used: " + driver + "/libcublasLt.so.12 is version " +
			"11.8.3; 12.0.0 is the least that is used: linear layers"},
		{"LD_LIBRARY_PATH=" + alone, "note  library  cuBLASLt is not in "},
		{"LD_LIBRARY_PATH=" + alone, "the loader's path, /usr/local/cuda/lib64"},
		{"LD_LIBRARY_PATH=" + alone, "; it comes with: pip install nvidia-cublas"},
		{"", "ok    library  cuDNN 9.13.1, " + driver + "/libcudnn.so.9: attention in bf16\n"},
		{"FAKEGPU_CUDNN=91300", "note  library  cuDNN cannot be used: " + driver + "/libcudnn.so.9 is version 9.13.0; " +
			"9.13.1 is the least that is used: attention in bf16 runs on kernels of this program"},
		{"FAKEGPU_CUDNN_CUDA=13000", "/libcudnn.so.9 is for CUDA 13, the driver serves 12: attention"},
		{"FAKEGPU_CUDNN_BARE=1", "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED: Unable to load any of {libcudnn_graph.so.9}"},
		{"PATCHBAY_CUDA_LIBS=off", "note  library  cuBLASLt is switched off (--cuda-libs off): linear layers in bf16 "},
	} {
		out, _ := onFake(t, driver, program, append(strings.Fields(c.env), "PATCHBAY_HOME="+t.TempDir()), "doctor")
		if !strings.Contains(out, c.says) {
			t.Errorf("%s: want %q\n%s", c.env, c.says, out)
		}
	}
}

// TestCUDAHostMemory checks that --memory bounds what a worker on a GPU takes of the machine's memory: values of nodes,
// pinned memory and the driver's own. The memory of the fake device is in there too, at most 64 MiB in this test.
func TestCUDAHostMemory(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", fakegpu.Library(t))
	const limit, device = 300 << 10, 64 << 10 // KiB
	s := harness.Start(t, harness.Build(t), "", "--devices", "cuda:0", "--memory", "300M", "--device-memory", "64M")
	s.Until("a worker is up", func() bool { return len(s.WorkerPIDs()) > 0 })
	pid := s.WorkerPIDs()[0]
	c := s.Client()
	run := func(flow string) error {
		ctx, stop := context.WithTimeout(context.Background(), harness.Patience)
		defer stop()
		end, err := client.Run(ctx, c, &message.RunRequest{Workflow: flow}, &client.Collector{})
		if err == nil && end.Error != nil {
			return end.Error
		}
		return err
	}
	for i := range 8 {
		flow := picturesOf(1, 1024+128*(i%4), i)
		if i%4 == 0 {
			flow = sized(t, 64, i)
		}
		if err := run(flow); err != nil {
			t.Errorf("job %d: %v", i, err)
		}
	}
	s.Logged("GPU opened", `"device":"cuda:0"`, `"kernels":"code for sm_86, loaded in `)
	if e := fault.From(run(picturesOf(1, 6144, 9))); e == nil || e.Public() != fault.TooLarge {
		t.Errorf("one picture of 36 MP: %v, want too_large", e)
	}
	most := statusKiB(t, pid, "VmHWM")
	t.Logf("at most %d KiB resident of %d KiB and %d of the device", most, limit, device)
	if most > limit+limit/10+device {
		t.Errorf("the worker took %d KiB of --memory %d KiB and %d of the device", most, limit, device)
	}
}

// TestCUDARankHangs checks that when a kernel on the GPU of one rank never ends, the job reports where each rank
// stands, the processes of the ranks are killed, and the job goes on in new ones.
func TestCUDARankHangs(t *testing.T) {
	driver := fakegpu.Library(t)
	program, flow := smallDemo(t)
	hang := filepath.Join(t.TempDir(), "hang")
	for name, value := range map[string]string{
		"LD_LIBRARY_PATH": driver, "FAKEGPU_DEVICES": "2", "FAKEGPU_HANG": hang,
	} {
		t.Setenv(name, value)
	}
	text, err := os.ReadFile(flow)
	if err != nil {
		t.Fatal(err)
	}
	s := harness.Start(t, program, "", "--devices", "cuda:0-1", "--placement", "children", "--patience", "15s",
		"--cuda-libs", filepath.Join(driver, "nccl"))
	c := s.Client()
	ctx, end := context.WithTimeout(context.Background(), 2*harness.Patience)
	defer end()
	long := strings.Replace(string(text), `"steps": 2`, `"steps": 4`, 1)
	if _, err := client.Submit(ctx, c, &message.RunRequest{ID: "h", Workflow: long, Plan: "ulysses=2"}); err != nil {
		t.Fatal(err)
	}
	var before, after []int
	var warnings string
	_, err = client.Follow(ctx, c, "h", 0, false, &client.Collector{Event: func(ev message.Event) {
		switch {
		case ev.Type == message.EventMetrics:
			warnings = fmt.Sprint(ev.Data["warnings"])
		case ev.Type == message.EventProgress && before == nil:
			before = harness.Children(s.WorkerPIDs()[0])
			if err := os.WriteFile(hang, nil, 0o600); err != nil {
				t.Error(err)
			}
		case ev.Type == message.EventProgress:
			after = harness.Children(s.WorkerPIDs()[0])
		}
	}})
	if err != nil || len(before) != 2 || !strings.Contains(warnings, "no progress for 15s") ||
		!strings.Contains(warnings, fmt.Sprintf("(pid %d) at evaluation", before[1])) {
		t.Fatalf("got warnings %s, %v; want one that says where the ranks in %v stand", warnings, err, before)
	}
	if len(after) != 2 || slices.Contains(after, before[0]) || slices.Contains(after, before[1]) {
		t.Errorf("the ranks ran in processes %v, in the end in %v: want two new ones", before, after)
	}
	if got := s.WorkerPIDs(); len(got) != 1 {
		t.Errorf("workers were started %d times, want once", len(got))
	}
	s.WaitState(c, "h", message.Done)
}
