//go:build cgo && fakegpu

package cuda

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/engine/optest"
	"patchbay/tests/fakegpu"
)

// openedAs opens the fake device under an environment and returns it, what the driver says that it loaded (each
// kind of module once, in order), and its error.
func openedAs(t *testing.T, env ...string) (*Device, []string, error) {
	t.Helper()
	record := filepath.Join(t.TempDir(), "loaded")
	t.Setenv("FAKEGPU_LOADED", record)
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	d, err := Open(fakegpu.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := d.Device(0)
	if err == nil {
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	text, _ := os.ReadFile(record)
	var kinds []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); len(kinds) == 0 || kinds[len(kinds)-1] != line {
			kinds = append(kinds, line)
		}
	}
	return dev, kinds, err
}

// TestCodeBeforePTX checks what a device gets, by what the driver saw: code for it if there is some, else PTX, which is
// also what it gets if the driver refuses the code; and what the device says about it.
func TestCodeBeforePTX(t *testing.T) {
	for _, c := range []struct{ env, want, says string }{
		{"FAKEGPU_MINOR=6", "sm_86", "code for sm_86, loaded in "},
		{"FAKEGPU_MINOR=0", "sm_80", "code for sm_80, loaded in "},
		{"FAKEGPU_MAJOR=9 FAKEGPU_MINOR=0", "sm_90", "code for sm_90, loaded in "},
		{"FAKEGPU_MAJOR=10 FAKEGPU_MINOR=3", "sm_100", "code for sm_100, loaded in "},
		{"FAKEGPU_MAJOR=12 FAKEGPU_MINOR=1", "sm_120", "code for sm_120, loaded in "},
		{"FAKEGPU_MAJOR=11 FAKEGPU_MINOR=0", "PTX", ": this program has no code for compute capability 11.0"},
		{"CUDA_FORCE_PTX_JIT=1", "PTX", "s, as it refused their code: sm_86: load attend: cuModuleLoadData: " +
			"CUDA_ERROR_NO_BINARY_FOR_GPU"},
		{"CUDA_DISABLE_PTX_JIT=1", "sm_86", "code for sm_86, loaded in "},
	} {
		t.Run(c.env, func(t *testing.T) {
			dev, kinds, err := openedAs(t, strings.Fields(c.env)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(kinds, " "); got != c.want {
				t.Errorf("the driver loaded %q, want %q", got, c.want)
			}
			if got := dev.Loaded().String(); !strings.Contains(got, c.says) {
				t.Errorf("the device says %q, want %q", got, c.says)
			}
			if n := len(dev.functions); n != len(kernels) {
				t.Errorf("%d functions", n)
			}
		})
	}
}

// TestNeitherCodeNorPTX checks that a driver that takes neither is an error with both reasons.
func TestNeitherCodeNorPTX(t *testing.T) {
	dev, kinds, err := openedAs(t, "CUDA_FORCE_PTX_JIT=1", "CUDA_DISABLE_PTX_JIT=1")
	if err == nil {
		t.Fatalf("opened with %v", dev.Loaded())
	}
	for _, want := range []string{
		"CUDA_ERROR_JIT_COMPILATION_DISABLED", "sm_86: load attend", "CUDA_ERROR_NO_BINARY_FOR_GPU",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if len(kinds) > 0 {
		t.Errorf("the driver loaded %q", kinds)
	}
}

// TestPTXComputes runs the suite on kernels loaded as PTX, which the other tests do not load.
func TestPTXComputes(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN in the short form: the code of these kernels on the fake device is that of TestConformance")
	}
	dev, _, err := openedAs(t, "CUDA_FORCE_PTX_JIT=1")
	if err != nil {
		t.Fatal(err)
	}
	o, err := dev.NewOps()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}()
	optest.Run(t, o, optest.Options{BF16: true})
}

// TestPlantedFaultsInLoading plants faults in what a device gets.
func TestPlantedFaultsInLoading(t *testing.T) {
	fakegpu.Faults(t, []struct{ Name, File, Old, New, Test, Want string }{
		{
			"code for a newer GPU", "compiled/compiled.go", "a/10 == major && a%10 <= minor", "a/10 == major",
			"TestCodeBeforePTX", `the driver loaded "PTX", want "sm_86"`,
		},
		{
			"code for another generation", "compiled/compiled.go", "a/10 == major && a%10 <= minor", "a <= 10*major+minor",
			"TestCodeBeforePTX", `this program has no code for compute capability 11.0`,
		},
		{
			"PTX first", "cuda.go", "if code != nil {", "if false {", "TestCodeBeforePTX",
			`the driver loaded "PTX", want "sm_86"`,
		},
		{
			"a refusal is the end", "cuda.go", "errors.Is(err, engine.ErrOutOfMemory)", "err != nil", "TestCodeBeforePTX",
			"CUDA_ERROR_NO_BINARY_FOR_GPU",
		},
		{
			"a refusal is a lost device", "driver/shim.c", "    case PB_NO_BINARY:\n", "", "TestCodeBeforePTX",
			"CUDA_ERROR_NO_BINARY_FOR_GPU",
		},
	})
}
