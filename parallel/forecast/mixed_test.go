package forecast

import (
	"testing"

	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// TestMixedDevicesShareTheWork checks that where exchanges cost nothing, two devices that take a and b seconds alone
// take 1/(1/a+1/b) together, up to the granularity of heads and blocks, and that equal parts take half the slow one's.
func TestMixedDevicesShareTheWork(t *testing.T) {
	s := unshaped(searchFor(t, "flux-dev", 1024, 8, "H100-pcie,L40"))
	s.Cluster.Link = hardware.Interconnect{Name: "none", Bandwidth: 1e18, AllToAll: 1}
	var alone [2]float64
	for i := range s.Cluster.Mixed {
		s.Cluster.Mixed[i].Launch, s.Cluster.Mixed[i].Handover = 0, 0
		one := hardware.Cluster{Device: s.Cluster.Mixed[i], Link: s.Cluster.Link, Hosts: 1, PerHost: 1}
		sim := Search{Workload: s.Workload, Cluster: one}.Simulate(plan.OneRank())
		alone[i] = sim.Seconds
	}
	s.Cluster.Device = s.Cluster.Mixed[0]
	best := 1 / (1/alone[0] + 1/alone[1])
	for _, c := range []struct {
		text     string
		low, top float64
	}{
		{"ulysses=2", best, 1.08 * best}, // the slow one has 5 of 24 heads, where 4 are its part
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

// TestSlowDevicesAreLeftOut checks that a device that would slow down the fastest plan is not used, and that no device
// without room for its part is used.
func TestSlowDevicesAreLeftOut(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 28, "H100-pcie,L40")
	s.Exact = true
	got := choose(t, s)
	if got.Idle != 1 || s.Cluster.DescribeFrom(got.Best.Plan.Ranks()) != "1xL40" {
		t.Errorf("chose %s with %d idle, want the L40 left out", got.Best.Plan, got.Idle)
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

// TestPlansFollowPairs checks that where only two of four devices are close to each other, the planner chooses those
// two. By the link's rates alone it chooses four.
func TestPlansFollowPairs(t *testing.T) {
	s := searchFor(t, "sd3-medium", 1024, 28, "4xH100")
	s.Exact = true
	if got := choose(t, s).Best.Plan; got.Ranks() != 4 {
		t.Fatalf("by the link alone it is %s, want four ranks", got)
	}
	for a := range 4 {
		var row []hardware.Pair
		for b := range 4 {
			way := hardware.Pair{Bandwidth: 5e8, Latency: 1e-3}
			if a < 2 && b < 2 {
				way = hardware.Pair{Bandwidth: 3e11, Latency: 2e-5}
			}
			row = append(row, way)
		}
		s.Cluster.Between = append(s.Cluster.Between, row)
	}
	s.Cluster.Link.RingFraction, s.Cluster.Link.AllToAll = 1, 1
	if got := choose(t, s).Best.Plan; got.Ranks() != 2 || got.Ulysses != 2 && got.Ring != 2 && got.CFG != 2 {
		t.Errorf("the planner chose %s, want the two that are close", got)
	}
}
