package tests

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// benched is what `patchbay bench comm --hosts ... --json` prints.
type benched struct {
	Samples []struct {
		What         string
		Median, Rate float64
	}
	Extra struct {
		Transport string
		Devices   []string
	}
}

// benchHosts measures between hosts, and checks that each exchange and each pair of the ranks named in want has
// numbers.
func benchHosts(t *testing.T, program string, want []string, transport string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, append([]string{
		"bench", "comm", "--json", "--size", "64K", "--warmup", "1", "--runs", "3",
	}, args...)...)
	output, err := cmd.Output()
	var got benched
	if err == nil {
		err = json.Unmarshal(output, &got)
	}
	if err != nil {
		t.Fatalf("bench comm %q: %v\n%s", args, err, output)
	}
	if got.Extra.Transport != transport || !slices.Equal(got.Extra.Devices, want) {
		t.Errorf("%q by %s, want %q by %s", got.Extra.Devices, got.Extra.Transport, want, transport)
	}
	missing := map[string]bool{}
	for _, size := range []string{"4", "64"} {
		for _, exchange := range []string{"all-to-all", "ring", "all-gather", "all-reduce", "pipeline message"} {
			missing[exchange+", "+size+" KiB a rank"] = true
		}
		for i := range want {
			for k := i + 1; k < len(want); k++ {
				missing[want[i]+" and "+want[k]+", "+size+" KiB a rank"] = true
			}
		}
	}
	for _, s := range got.Samples {
		if delete(missing, s.What); !(s.Median > 0) || !(s.Rate > 0) {
			t.Errorf("%s: %g s, %g bytes a second", s.What, s.Median, s.Rate)
		}
	}
	if len(missing) > 0 {
		t.Errorf("not measured: %v", missing)
	}
}

// TestBenchHosts checks that bench comm measures between the ranks of two hosts, by pair, refuses what cannot be, names
// a host that is absent or busy, and releases the others.
func TestBenchHosts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: TestHosts runs ranks on two hosts")
	}
	program := harness.Build(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := harness.Printed(exec.Command(program, "host", "--new-key", key)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a := startMachine(t, program, key, t.TempDir(), "--ranks", "2", "--devices", "cpu")
	b := startMachine(t, program, key, t.TempDir(), "--devices", "cpu")
	both := []string{"--hosts", a.address + "," + b.address, "--cluster-key", key}
	names := []string{a.address + " rank 0", a.address + " rank 1", b.address + " rank 0"}
	for range 2 { // the hosts are free again the second time
		benchHosts(t, program, names, "host memory over TLS", both...)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--save", "f"}, "serve measures the network itself"},
		{[]string{"--ranks", "2"}, "patchbay host --ranks"},
		{[]string{"--devices", "cuda:0-1"}, "patchbay host --devices"},
		{[]string{"--size", "1K"}, "want 64K to 1G"},
		{[]string{"--transport", "nccl"}, "add --trusted-network"},
		{[]string{"--transport", "nccl", "--trusted-network"}, "host " + a.address + " does not meet the others"},
		{[]string{"--hosts", b.address}, "want 2 to 64 ranks together, and there are 1"},
		{[]string{"--hosts", "cluster:g"}, "name those of g"},
		{[]string{"--hosts", a.address + ",127.0.0.1:1"}, "host 127.0.0.1:1: connect: connection refused"},
		{[]string{"--cluster-key", key + "x"}, "--new-key FILE` makes one"},
	} {
		args := slices.Concat([]string{"bench", "comm", "--size", "64K", "--runs", "1"}, both, c.args)
		if out, err := harness.Printed(exec.Command(program, args...)); err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%q: %v, want %q in\n%s", c.args, err, c.want, out)
		}
	}
	s := harness.Start(t, program, "", "--hosts", b.address, "--cluster-key", key)
	if _, err := s.Picture("p", "", 1); err == nil {
		t.Fatal("a host without models draws a picture")
	}
	args := append([]string{"bench", "comm"}, both...)
	if out, err := harness.Printed(exec.Command(program, args...)); err == nil ||
		!strings.Contains(string(out), "host "+b.address+": it works for ") {
		t.Errorf("a host that is at work: %v\n%s", err, out)
	}
}
