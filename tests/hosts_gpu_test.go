package tests

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/tests/fakegpu"
)

// TestCUDAHosts checks that ranks on GPUs of two machines draw the picture of the CPU, to within one level of 255,
// through host memory over TLS, and by NCCL where the network is trusted. Without that flag NCCL cannot be asked for.
// bench comm measures both ways.
func TestCUDAHosts(t *testing.T) {
	driver := fakegpu.Library(t)
	t.Setenv("LD_LIBRARY_PATH", driver) // of the hosts and daemons of this test
	t.Setenv("FAKEGPU_DEVICES", "2")
	t.Setenv("PATCHBAY_CUDA_LIBS", filepath.Join(driver, "nccl"))
	program := buildProgram(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := exec.Command(program, "host", "--new-key", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var list string
	var machines []*machine
	for i := range 2 { // each has its own card, because NCCL sees that they share a machine
		m := startMachine(t, program, key, demoModels(t), "--trusted-network", "--patience", "1m", "--devices",
			fmt.Sprintf("cuda:%d", i))
		machines, list = append(machines, m), list+","+m.address
	}
	names := []string{machines[0].address + " cuda:0", machines[1].address + " cuda:1"}
	benchHosts(t, program, names, "nccl", "--hosts", list[1:], "--cluster-key", key, "--trusted-network")
	benchHosts(t, program, names, "host memory over TLS", "--hosts", list[1:], "--cluster-key", key)
	here := startServer(t, program, "", "--devices", "cpu", "--compute", "f32")
	want, err := here.picture("here", "", 7)
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"nccl": {"--transport", "nccl", "--trusted-network"}, "tls": nil,
	} {
		s := startServer(t, program, "", append([]string{
			"--devices", "cpu", "--compute", "f32", "--hosts", list[1:], "--cluster-key", key, "--patience", "1m",
		}, args...)...)
		got, err := s.picture(name, "ulysses=2", 7)
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", name, err, s.log, machines[0].log)
		}
		if worst := channelsApart(t, got, want); worst > 1 {
			t.Errorf("%s: differs from the processors by %d levels, want at most 1", name, worst)
		}
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		if strings.Contains(s.log.String(), "a host is not used") {
			t.Errorf("%s: a host was left out:\n%s", name, s.log)
		}
	}
}

// channelsApart returns the largest difference of two pictures in a channel, in levels.
func channelsApart(t *testing.T, a, b []byte) int {
	t.Helper()
	var levels [2][]int
	for i, raw := range [][]byte{a, b} {
		img, err := png.Decode(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		levels[i] = channels(img)
	}
	if len(levels[0]) != len(levels[1]) {
		t.Fatalf("pictures of %d and %d values", len(levels[0]), len(levels[1]))
	}
	return apart(levels[0], levels[1])
}

// channels returns the channels of all pixels, 0 to 255.
func channels(img image.Image) (levels []int) {
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			levels = append(levels, int(r>>8), int(g>>8), int(b>>8))
		}
	}
	return levels
}
