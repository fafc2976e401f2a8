package forecast

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/published"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// searchFor returns a search for one picture of a released model.
func searchFor(t testing.TB, model string, size, steps int, devices string) Search {
	t.Helper()
	m, err := published.Find(model)
	if err != nil {
		t.Fatal(err)
	}
	f, err := hardware.ParseCluster(devices)
	if err != nil {
		t.Fatal(err)
	}
	text := make([]int, m.Entries)
	for i := range text {
		text[i] = m.Text
	}
	return Search{
		Workload: Workload{Spec: m.Spec, Y: size / m.Scale, X: size / m.Scale, Batch: 1, Text: text, Evaluations: steps},
		Cluster:  f, Warmup: 1,
	}
}

// unshaped returns s on devices that compute a row in the same time however few there are, as the tests of schedules
// need: the rest of an even share is then what waits. TestShapesSlowSmallWork tests the corrections by shape.
func unshaped(s Search) Search {
	s.Cluster.Device.Shapes = hardware.Shapes{}
	s.Cluster.Mixed = slices.Clone(s.Cluster.Mixed)
	for i := range s.Cluster.Mixed {
		s.Cluster.Mixed[i].Shapes = hardware.Shapes{}
	}
	return s
}

func choose(t *testing.T, s Search) *Choice {
	t.Helper()
	c, err := s.Choose()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMoreDevicesAreNeverSlower checks that the chosen time never rises with the number of devices, and that unused
// devices are counted as idle.
func TestMoreDevicesAreNeverSlower(t *testing.T) {
	if testing.Short() {
		t.Skip("long: many plannings; TestChosenPlanIsTheFastest has a few")
	}
	for _, c := range []struct {
		model, device string
		size, steps   int
	}{
		{"flux-dev", "H100-nvlink", 1024, 28},
		{"flux-schnell", "L40-pcie", 1024, 4},
		{"pixart-alpha", "A100-80-nvlink", 512, 20},
		{"hunyuandit", "L40-pcie", 1024, 50},
		{"sd3-medium", "4090-pcie", 1024, 28},
		{"flux-dev", "3xH100-pcie,5xL40", 1024, 28},
	} {
		last := math.Inf(1)
		for n := 1; n <= 8; n++ {
			s := searchFor(t, c.model, c.size, c.steps, c.device)
			s.Cluster.PerHost = n
			got := choose(t, s)
			if got.Best.Seconds > last*(1+1e-12) {
				t.Errorf("%s on %d %s: %s takes %.4f s, with one device less %.4f s", c.model, n, c.device, got.Best.Plan,
					got.Best.Seconds, last)
			}
			if got.Idle != n-got.Best.Plan.Ranks() || got.Idle < 0 {
				t.Errorf("%s on %d %s: %s with %d idle", c.model, n, c.device, got.Best.Plan, got.Idle)
			}
			last = got.Best.Seconds
		}
	}
}

// TestChosenPlanIsTheFastest compares the choice with a simulation of every plan, and checks that a bound never
// exceeds the simulated time.
func TestChosenPlanIsTheFastest(t *testing.T) {
	for _, s := range []Search{
		searchFor(t, "flux-dev", 1024, 28, "4xL40-pcie"), searchFor(t, "pixart-alpha", 1024, 20, "6xA100-80-nvlink"),
		searchFor(t, "hunyuandit", 1024, 8, "4xL40-pcie"), searchFor(t, "flux-schnell", 1024, 4, "8xH100-nvlink"),
		searchFor(t, "flux-dev", 1024, 8, "2xH100-pcie,2xL40"),
	} {
		got := choose(t, s)
		s.Device = s.Cluster.Device // as in Choose
		best, at, n := math.Inf(1), plan.Plan{}, 0
		for _, p := range s.plans(s.Cluster.Ranks()) {
			for _, p := range append(s.lastResort(Candidate{Plan: p}), p) {
				n++
				cost := newCosts(NewPartition(s.Workload, p), s.Cluster)
				sim := simulate(cost, true)
				if b := cost.bound(); b > sim.Seconds {
					t.Errorf("%s: bound %.6f s is above the simulated %.6f s", p, b, sim.Seconds)
				}
				if sim.Seconds < best && weigh(t, s, p).Fits {
					best, at = sim.Seconds, p
				}
			}
		}
		if got.Best.Seconds != best {
			t.Errorf("%s: chose %s with %.6f s; of %d plans %s is fastest with %.6f s", s.Cluster, got.Best.Plan,
				got.Best.Seconds, n, at, best)
		}
	}
}

// TestFewStepsGetAFasterPlan checks that a model of four steps gets a plan that beats one device, although a pipeline
// pays for warm-up and filling.
func TestFewStepsGetAFasterPlan(t *testing.T) {
	for _, devices := range []string{"8xL40-pcie", "8xH100-nvlink", "4x4090-pcie", "2xA100-80-nvlink"} {
		s := searchFor(t, "flux-schnell", 1024, 4, devices)
		got := choose(t, s)
		alone := s
		alone.Cluster.PerHost, alone.Cluster.Device.Memory = 1, 0
		one := choose(t, alone)
		if !(got.Best.Seconds <= 0.8*one.Best.Seconds) {
			t.Errorf("%s: %s takes %.3f s, one device %.3f s: want at most 0.8 of it", devices, got.Best.Plan,
				got.Best.Seconds, one.Best.Seconds)
		}
	}
}

// TestFewStepsMayStayOnOneRank checks that four steps of a small picture on two hosts stay on one device, as the
// network costs more than it gains, unless keys and values may be stale.
func TestFewStepsMayStayOnOneRank(t *testing.T) {
	s := searchFor(t, "pixart-alpha", 288, 4, "2x1xH100+ethernet100")
	s.Text, s.Exact = s.Text[:1], true
	got := choose(t, s)
	if got.Best.Plan != plan.OneRank() || got.Idle != 1 {
		t.Fatalf("chose %s with %d devices idle, want one rank and one idle", got.Best.Plan, got.Idle)
	}
	for _, c := range got.Others {
		if c.Seconds < got.Best.Seconds {
			t.Errorf("%s takes %.4f s, one rank %.4f s", c.Plan, c.Seconds, got.Best.Seconds)
		}
	}
}

// TestSpreadWarmupShare checks that a spread evaluation on four stages takes at most 0.4 of one device's on NVLink,
// transfers included. PCIe and HunyuanDiT, whose evaluations are short, have bounds of their own.
func TestSpreadWarmupShare(t *testing.T) {
	for _, c := range []struct {
		model, devices string
		bound          float64
	}{
		{"flux-dev", "4xH100-nvlink", 0.4},
		{"flux-dev", "4xA100-80-nvlink", 0.4},
		{"flux-dev", "4xL40-pcie", 0.43},
		{"hunyuandit", "4xA100-80-nvlink", 0.4},
		{"hunyuandit", "4xH100-nvlink", 0.47},
		{"hunyuandit", "4xL40-pcie", 0.52},
	} {
		s := unshaped(searchFor(t, c.model, 1024, 28, c.devices))
		p := plan.Plan{
			Data: 1, CFG: 1, Pipe: 4, Ring: 1, Ulysses: 1, Tensor: 1, Patches: 6, Warmup: 1,
			Spread: true, Overlap: true,
		}
		sim := s.Simulate(p)
		one := s.Simulate(plan.OneRank())
		share := sim.WarmupSeconds / one.StepSeconds
		t.Logf("%s on %s: warm-up %.1f ms, one device %.1f ms: %.3f", c.model, c.devices, 1e3*sim.WarmupSeconds,
			1e3*one.StepSeconds, share)
		if !(share <= c.bound) {
			t.Errorf("%s on %s: a spread evaluation takes %.3f of one device's, bound %.2f", c.model, c.devices, share, c.bound)
		}
	}
}

// TestPlannerRefusesWhatDoesNotFit checks that the error names bytes and a sufficient number of devices.
func TestPlannerRefusesWhatDoesNotFit(t *testing.T) {
	s := searchFor(t, "flux-dev", 2048, 28, "1x4090-pcie")
	_, err := s.Choose()
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != fault.OutOfMemory || !strings.Contains(e.Text, "devices would do") ||
		!strings.Contains(e.Text, "GB") {
		t.Fatalf("got %v, want out_of_memory with sizes and a number of devices", err)
	}
	s = searchFor(t, "flux-dev", 4096, 28, "4x4090-pcie")
	if best := choose(t, s).Best; best.Memory.Total() > s.Cluster.Device.Free() {
		t.Errorf("chose %s, which needs %d of %d bytes", best.Plan, best.Memory.Total(), s.Cluster.Device.Free())
	}
	p, err := plan.Parse("ulysses=4")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Predict(p); !errors.As(err, &e) || e.Code != fault.OutOfMemory || !strings.Contains(e.Text, "use ") {
		t.Errorf("ulysses=4 holds the whole model on 24 GB: got %v, want out_of_memory with an alternative", err)
	}
	p.Ulysses = 5
	if _, err := s.Predict(p); !errors.As(err, &e) || e.Code != fault.PlanRefused {
		t.Errorf("five ranks on four devices: got %v, want plan_refused", err)
	}
}

// TestExactSearch checks that an exact search chooses only plans that give the picture of one rank.
func TestExactSearch(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 28, "8xL40-pcie")
	if c := choose(t, s); c.Best.Exact {
		t.Errorf("%s is exact: this test needs devices where a pipeline wins", c.Best.Plan)
	}
	s.Exact = true
	if c := choose(t, s); !c.Best.Exact {
		t.Errorf("%s is not exact", c.Best.Plan)
	}
}

// TestPipelineSteadyState checks that a step of FLUX at 1024 px on stages, text and host hand-over included, takes at
// most 1.10 of an even share of one device's step, or 1.04 of what the stage with most blocks takes of it: of 57 blocks
// of equal cost one of 8 stages has 8, 1.123 of the mean.
func TestPipelineSteadyState(t *testing.T) {
	for _, devices := range []string{"3xL40-pcie", "4xL40-pcie", "8xL40-pcie", "8xA100-80-nvlink", "8xH100-nvlink"} {
		s := unshaped(searchFor(t, "flux-dev", 1024, 28, devices))
		alone := s.Simulate(plan.OneRank())
		best, at, n := math.Inf(1), 0, s.Cluster.Ranks()
		for _, patches := range s.patchCounts(n) {
			p := plan.OneRank()
			p.Pipe, p.Patches, p.Warmup = n, patches, 1
			sim := s.Simulate(p)
			if patches > 1 && sim.StepSeconds < best {
				best, at = sim.StepSeconds, patches
			}
		}
		ratio := best / (alone.StepSeconds / float64(n))
		t.Logf("%s: step %.2f ms with %d patches, 1/%d of one device %.2f ms: %.3f", devices, 1e3*best, at, n,
			1e3*alone.StepSeconds/float64(n), ratio)
		blocks := len(s.Spec.Blocks)
		fullest := float64((blocks+n-1)/n) * float64(n) / float64(blocks)
		if most := max(1.10, 1.04*fullest); !(ratio <= most && ratio >= 0.99) {
			t.Errorf("%s: %.3f of an even share, want 0.99 to %.3f", devices, ratio, most)
		}
	}
}

// TestTimesAddUp checks that every rank's compute, exchange, transfer and idle times add up to the whole run.
func TestTimesAddUp(t *testing.T) {
	for _, text := range []string{"", "ulysses=4", "ring=2,ulysses=2", "pipe=4,patches=6", "cfg=2,pipe=2,tensor=2"} {
		s := searchFor(t, "hunyuandit", 1024, 6, "8xL40-pcie")
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, p.Overlap = range []bool{true, false} {
			sim := s.Simulate(p)
			for i, r := range sim.Ranks {
				if sum := r.Compute + r.Exchange + r.Send + r.Idle; !near(sum, sim.Seconds, 1e-9*sim.Seconds) || r.Compute <= 0 {
					t.Errorf("%s rank %d: %+v adds up to %.6f s of %.6f s", p, i, r, sum, sim.Seconds)
				}
			}
		}
	}
}

// TestShardingIsTheLastResort checks that weights are sharded where they do not fit otherwise, and only there.
func TestShardingIsTheLastResort(t *testing.T) {
	for devices, want := range map[string]bool{"4x4090-pcie": true, "4xH200-nvlink": false} {
		if got := choose(t, searchFor(t, "flux2-dev", 1024, 4, devices)); got.Best.Plan.Shard != want {
			t.Errorf("%s: chose %s", devices, got.Best.Plan)
		}
	}
}
