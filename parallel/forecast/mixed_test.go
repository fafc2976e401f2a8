package forecast

import (
	"slices"
	"strings"
	"testing"

	"patchbay/parallel/plan"
)

// TestMixedDevicesShareTheWork checks that where exchanges cost nothing, two devices that take a and b seconds alone
// take 1/(1/a+1/b) together, up to the granularity of heads and blocks, and that equal parts take half the slow one's.
func TestMixedDevicesShareTheWork(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 8, "H100-pcie,L40")
	s.Cluster.Link = Interconnect{Name: "none", Bandwidth: 1e18, AllToAll: 1}
	var alone [2]float64
	for i := range s.Cluster.Mixed {
		s.Cluster.Mixed[i].Launch, s.Cluster.Mixed[i].Handover = 0, 0
		one := Cluster{Device: s.Cluster.Mixed[i], Link: s.Cluster.Link, Hosts: 1, PerHost: 1}
		sim := Simulate(s.Workload, plan.OneRank(), one)
		alone[i] = sim.Seconds
	}
	s.Cluster.Device = s.Cluster.Mixed[0]
	best := 1 / (1/alone[0] + 1/alone[1])
	for _, c := range []struct {
		text     string
		low, top float64
	}{
		{"ulysses=2", best, 1.04 * best},
		{"ring=2", best, 1.04 * best},
		{"pipe=2,patches=16", best, 1.35 * best}, // filling, and a warm-up stage by stage
		{"ulysses=2,speeds=50:50", 0.499 * alone[1], 0.51 * alone[1]},
	} {
		p, err := plan.Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Predict(p)
		if err != nil {
			t.Fatal(err)
		}
		if v := got.Best.Seconds; !(v >= c.low*0.999 && v <= c.top) {
			t.Errorf("%s takes %.4f s, want %.4f to %.4f; alone %v", c.text, v, c.low, c.top, alone)
		}
	}
}

// TestSlowDevicesAreLeftOut checks that a device that would slow down the fastest plan is not used, that the answer
// names it and its cost, and that no device without room for its part is used.
func TestSlowDevicesAreLeftOut(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 28, "H100-pcie,L40")
	s.Exact = true
	got := choose(t, s)
	if why := s.IdleReason(got); got.Idle != 1 || s.Cluster.DescribeFrom(got.Best.Plan.Ranks()) != "1xL40" ||
		!strings.Contains(why, "speeds=100:") || !strings.Contains(why, "%") {
		t.Errorf("chose %s with %d idle: %s; want the L40 left out with the time it costs", got.Best.Plan, got.Idle, why)
	}
	s = searchFor(t, "flux-dev", 1024, 28, "L40,4090")
	s.Cluster.Mixed[1].Memory = 8 << 30
	if got = choose(t, s); got.Idle == 0 && got.Best.Memory.Total() > s.Cluster.Mixed[1].Free() {
		t.Errorf("chose %s, which needs %d of the bytes of a small device", got.Best.Plan, got.Best.Memory.Total())
	}
	for _, c := range append(got.Others, got.Best) {
		if c.Least && c.Fits {
			continue // too slow to know
		}
		w := s.Workload
		w.Device = s.Cluster.Device
		fits := true
		for r, m := range memoryByRank(t, w, c.Plan, 2, 2) {
			fits = fits && m.Total() <= s.Cluster.Mixed[r].Memory-s.Cluster.Mixed[r].Reserved
		}
		if fits != c.Fits {
			t.Errorf("%s fits: %v, by the memory of each rank %v", c.Plan, c.Fits, fits)
		}
	}
}

// TestMixedClusters checks that lists are sorted, fastest first, share the slowest link, and can be read back.
func TestMixedClusters(t *testing.T) {
	for text, want := range map[string]string{
		"2xL40,H100": "1xH100-pcie4,2xL40-pcie4", "H100-nvlink,A100-80": "1xH100-nvlink3,1xA100-80-nvlink3",
		"L40,L40": "2xL40-pcie4", "2xH100,2xH200,L20": "2xH100-pcie4,2xH200-pcie4,1xL20-pcie4",
	} {
		f, err := ParseCluster(text)
		if err != nil || f.String() != want || (f.Mixed == nil) != (text == "L40,L40") {
			t.Errorf("%s: %s, %v, want %s", text, f, err, want)
		}
		if again, err := ParseCluster(f.String()); err != nil || again.String() != want {
			t.Errorf("%s: %s does not read back: %v", text, f, err)
		}
	}
	for text, want := range map[string]string{
		"2x2xH100,L40": "on one host", "40xL40,40xL20": "at most 64", "L40,": "8xH100", "L40,B300": "B300",
	} {
		if _, err := ParseCluster(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error that contains %q", text, err, want)
		}
	}
}

// TestMachinesOfSeveralKinds checks that they can be read back, and that a duplicate name, a bad device and an unknown
// kind are refused.
func TestMachinesOfSeveralKinds(t *testing.T) {
	m, err := NewMachine("H100")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewMachine("L40")
	if err != nil {
		t.Fatal(err)
	}
	m.Others = []Device{other.Device}
	text, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadMachine(text)
	if err != nil || again.Device != m.Device || !slices.Equal(again.Others, m.Others) || again.Link != m.Link {
		t.Fatalf("%+v, %v: want %+v", again, err, m)
	}
	if d, err := again.Kind("l40"); err != nil || d != other.Device {
		t.Errorf("l40 is %+v, %v", d, err)
	}
	if _, err := again.Kind("L20"); err == nil || !strings.Contains(err.Error(), "H100, L40") {
		t.Errorf("L20: %v, want an error that lists what there is", err)
	}
	again.Pairs = []Pair{
		{A: "cuda:0", B: "cuda:1", Bandwidth: 1e9, Latency: 1e-5}, {A: "cuda:0", B: "cuda:2", Bandwidth: 2e9},
	}
	paired, err := again.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if read, err := ReadMachine(paired); err != nil || !slices.Equal(read.Pairs, again.Pairs) {
		t.Errorf("pairs are read as %+v, %v", read.Pairs, err)
	}
	for from, to := range map[string]string{`"cuda:2"`: `""`, `"bandwidth": 2000000000`: `"bandwidth": 0`} {
		if _, err := ReadMachine([]byte(strings.Replace(string(paired), from, to, 1))); err == nil ||
			!strings.Contains(err.Error(), "pairs[1].") {
			t.Errorf("%s: got %v, want an error that names pairs[1]", to, err)
		}
	}
	for from, to := range map[string]string{`"L40"`: `"h100"`, `"gemm": 135000000000000`: `"gemm": 0`} {
		bad := strings.Replace(string(text), from, to, 1)
		if _, err := ReadMachine([]byte(bad)); err == nil || !strings.Contains(err.Error(), "devices[1].") {
			t.Errorf("%s: got %v, want an error that names devices[1]", to, err)
		}
	}
}
