package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"patchbay/parallel/forecast"
	"patchbay/tests/fakegpu"
)

// TestHostsThatDiffer checks that a machine whose file of rates says that it is four times as slow as the other gets a
// quarter of the other's work, though it is first in the list, and that the picture is that of one rank.
func TestHostsThatDiffer(t *testing.T) {
	t.Parallel()
	m, err := forecast.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	m.Device.Launch, m.Device.Source = 0, "measured elsewhere"
	m.Device.GEMM, m.Device.Attention, m.Device.Traffic = m.Device.GEMM/4, m.Device.Attention/4, m.Device.Traffic/4
	text, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rates.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	unlikeHosts(t, []string{"--rates", file}, nil, 22, 28, "cpu: measured elsewhere", "cpu: two cores with AVX-512")
}

// TestCUDAHostsThatDiffer is TestHostsThatDiffer with two kinds of fake GPUs whose names are in the table of rates.
func TestCUDAHostsThatDiffer(t *testing.T) {
	driver := fakegpu.Library(t)
	t.Setenv("LD_LIBRARY_PATH", driver) // of the hosts and daemons of this test
	t.Setenv("FAKEGPU_DEVICES", "2")
	t.Setenv("FAKEGPU_NAMES", "NVIDIA L40,NVIDIA H100 PCIe")
	t.Setenv("PATCHBAY_CUDA_LIBS", filepath.Join(driver, "nccl"))
	unlikeHosts(t, []string{"--devices", "cuda:0"}, []string{"--devices", "cuda:1"}, 15, 35,
		"NVIDIA L40: row L40 of the built-in table", "NVIDIA H100 PCIe: row H100 of the built-in table")
}

// unlikeHosts draws a picture on a slow and a fast host with these flags. The slow one must have least to most percent
// of the speed of the other, and the log must name the rates of both.
func unlikeHosts(t *testing.T, slow, fast []string, least, most int, rates ...string) {
	t.Helper()
	program := buildProgram(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := exec.Command(program, "host", "--new-key", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var list []string
	for _, args := range [][]string{slow, fast} {
		m := startMachine(t, program, key, demoModels(t), append(args, "--patience", "1m")...)
		list = append(list, m.address)
	}
	want, _ := startServer(t, program, "", "--devices", "cpu", "--compute", "f32").small("here", "", 7)
	s := startServer(t, program, "", "--devices", "cpu", "--compute", "f32", "--cluster-key", key, "--patience", "1m",
		"--hosts", strings.Join(list, ","))
	got, metrics := s.small("both", "ring=2", 7)
	if t.Failed() {
		return
	}
	if worst := channelsApart(t, got, want); worst > 1 {
		t.Errorf("differs from one rank by %d levels, want at most 1", worst)
	}
	text, err := json.Marshal(metrics)
	if err != nil {
		t.Fatal(err)
	}
	speeds := regexp.MustCompile(`ring=2,speeds=100:(\d+)"`).FindSubmatch(text)
	if speeds == nil {
		t.Fatalf("the job ran by equal shares, or the slow host first: %s", text)
	}
	if n, _ := strconv.Atoi(string(speeds[1])); n < least || n > most {
		t.Errorf("ran by speeds 100 to %d, want %d to %d", n, least, most)
	}
	for i, rate := range rates {
		part := fmt.Sprintf(`"host":"host %s","rates":"%s`, list[i], rate)
		s.until("the log tells "+part, func() bool { return strings.Contains(s.log.String(), part) })
	}
}
