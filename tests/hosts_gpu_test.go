//go:build fakegpu

package tests

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/tests/fakegpu"
	"patchbay/tests/harness"
)

// TestCUDAHosts checks that ranks on GPUs of two machines draw the picture of the CPU, to within one level of 255,
// through host memory over TLS, and by NCCL where the network is trusted. Without that flag NCCL cannot be asked for.
// bench comm measures both ways.
func TestCUDAHosts(t *testing.T) {
	driver := fakegpu.Library(t)
	t.Setenv("LD_LIBRARY_PATH", driver) // of the hosts and daemons of this test
	t.Setenv("FAKEGPU_DEVICES", "2")
	t.Setenv("PATCHBAY_CUDA_LIBS", filepath.Join(driver, "nccl"))
	program := harness.Build(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := harness.Printed(exec.Command(program, "host", "--new-key", key)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var list string
	var machines []*machine
	for i := range 2 { // each has its own card, because NCCL sees that they share a machine
		m := startMachine(t, program, key, harness.DemoModels(t), "--trusted-network", "--patience", "1m", "--devices",
			fmt.Sprintf("cuda:%d", i))
		machines, list = append(machines, m), list+","+m.address
	}
	names := []string{machines[0].address + " cuda:0", machines[1].address + " cuda:1"}
	benchHosts(t, program, names, "nccl", "--hosts", list[1:], "--cluster-key", key, "--trusted-network")
	benchHosts(t, program, names, "host memory over TLS", "--hosts", list[1:], "--cluster-key", key)
	local := harness.Start(t, program, "", "--devices", "cpu", "--compute", "f32")
	want, err := local.Picture("here", "", 7)
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"nccl": {"--transport", "nccl", "--trusted-network"}, "tls": nil,
	} {
		s := harness.Start(t, program, "", append([]string{
			"--devices", "cpu", "--compute", "f32", "--hosts", list[1:], "--cluster-key", key, "--patience", "1m",
		}, args...)...)
		got, err := s.Picture(name, "ulysses=2", 7)
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", name, err, s.Log, machines[0].log)
		}
		if worst := channelsApart(t, got, want); worst > 1 {
			t.Errorf("%s: differs from the processors by %d levels, want at most 1", name, worst)
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if strings.Contains(s.Log.String(), "a host is not used") {
			t.Errorf("%s: a host was left out:\n%s", name, s.Log)
		}
	}
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
