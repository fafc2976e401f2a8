package forecast

import (
	"testing"

	"patchbay/parallel/plan"
)

// TestVolumesOfPublishedModels compares the formulas with numbers worked out independently for FLUX at 1024 px with
// 512 text tokens in bf16: a Ulysses rank sends 1614, 1210 and 706 MB per step on 2, 4 and 8 ranks, a rank that
// gathers 1614 and 2421 MB on 2 and 4, a pipeline stage 28 MB on any number.
func TestVolumesOfPublishedModels(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 1, "H100")
	for _, c := range []struct {
		plan string
		axis plan.Axis
		mb   float64
	}{
		{"ulysses=2", plan.AxisUlysses, 1614},
		{"ulysses=4", plan.AxisUlysses, 1210},
		{
			"ulysses=8", plan.AxisUlysses,
			706,
		},
		{"gather=2", plan.AxisRing, 1614},
		{"gather=4", plan.AxisRing, 2421},
		{"pipe=4", plan.AxisPipe, 28.3},
		{"pipe=8", plan.AxisPipe, 28.3},
	} {
		p, err := plan.Parse(c.plan)
		if err != nil {
			t.Fatal(err)
		}
		got := float64(TrafficByRank(s.Workload, p, 2, 2)[0][c.axis].Bytes) / 1e6
		if !near(got, c.mb, 0.005*c.mb) {
			t.Errorf("%s: %.1f MB a step, want %.1f within 0.5 %%", c.plan, got, c.mb)
		}
	}
}
