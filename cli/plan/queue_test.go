package plan

import (
	"math"
	"testing"
)

// TestJobsSideBySide checks for 1 to 50 jobs on 8 devices that no device works on two jobs, that plans fit, that the
// last job never ends later than with all jobs one after another on all devices or with a device each, that 40 jobs
// reach 0.95 of the throughput of one job per device where that fits, and that a lone job gets the planner's choice
// for all devices.
func TestJobsSideBySide(t *testing.T) {
	if testing.Short() {
		t.Skip("long: up to 50 jobs; TestGroupsLeaveNobodyAlone of package parallel has a few")
	}
	for _, c := range []struct{ model, devices string }{
		{"flux-dev", "8xH100-nvlink"}, {"pixart-alpha", "8xL40-pcie"}, {"flux-dev", "8x4090-pcie"},
	} {
		f := Flags{Model: c.model, Size: "1024x1024", Devices: c.devices, Batch: 1, Warmup: 1, Steps: 28}
		s, err := f.Search()
		if err != nil {
			t.Fatal(err)
		}
		best := byDevices(s)
		for n := 1; n <= 50; n++ {
			jobs, last := sideBySide(n, best), 0.0
			if len(jobs) != n {
				t.Fatalf("%s on %s: %d jobs of %d run", c.model, c.devices, len(jobs), n)
			}
			for _, j := range jobs {
				last = max(last, j.End)
				busy := 0
				for _, other := range jobs {
					if other.Start <= j.Start && j.Start < other.End {
						busy += other.Devices
					}
				}
				if busy > 8 || j.Plan.Ranks() > j.Devices || !best[j.Devices].Fits || j.Plan != best[j.Devices].Plan {
					t.Errorf("%s on %s: %d devices are busy at %.3f s with %s on %d", c.model, c.devices, busy, j.Start, j.Plan,
						j.Devices)
				}
			}
			inTurn, each := float64(n)*best[8].Seconds, float64((n+7)/8)*best[1].Seconds
			if !(last <= min(inTurn, each)*(1+1e-9)) {
				t.Errorf("%s on %s: %d jobs end at %.3f s, one after another at %.3f s, on a device each at %.3f s", c.model,
					c.devices, n, last, inTurn, each)
			}
			if share := float64(n) * best[1].Seconds / 8 / last; n == 40 && !math.IsInf(share, 1) && !(share >= 0.95) {
				t.Errorf("%s on %s: %.3f of the throughput of one job a device, want 0.95", c.model, c.devices, share)
			}
		}
		choice, err := s.Choose()
		if err != nil {
			t.Fatal(err)
		}
		if lone, want := sideBySide(1, best)[0], choice.Best; lone.Plan != want.Plan || lone.End != want.Seconds {
			t.Errorf("%s on %s: a lone job runs %+v, the planner chooses %s", c.model, c.devices, lone, want.Plan)
		}
	}
}
