package forecast

import (
	"math"
	"testing"

	"patchbay/models/tiny"
	"patchbay/parallel/plan"
	"patchbay/parallel/plan/plantest"
)

// TestFreshnessFollowsTheSchedule checks that the table lists the micro-steps that the executor runs, in its order.
func TestFreshnessFollowsTheSchedule(t *testing.T) {
	d, err := tiny.Describe("flux")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"pipe=2", "pipe=3,patches=5,warmup=2", "pipe=4,patches=2,warmup=0", "ulysses=2"} {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		o := NewPartition(Workload{Spec: &d.Spec, Y: 12, X: 12, Batch: 1, Text: []int{7}, Evaluations: 5}, p)
		table := plantest.FreshnessTable(len(o.Patches), 5, p.Warmup)
		for i, m := range o.micros() {
			if i >= len(table) || table[i].Micro != m {
				t.Fatalf("%s: micro-step %d is %s, the table has %v", text, i, m, table[min(i, len(table)-1)].Micro)
			}
		}
		if len(table) != len(o.micros()) {
			t.Errorf("%s: %d rows, the executor has %d micro-steps", text, len(table), len(o.micros()))
		}
	}
}

// TestOutputLayersOfNetsTakeTime checks the time of the matrix [E, E] that ends each block of a control net, applied
// to all image tokens.
func TestOutputLayersOfNetsTakeTime(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 28, "2xH100-nvlink")
	net := *s.Spec
	net.Blocks = net.Blocks[:5]
	s.Nets = []Net{{Spec: &net, Entries: []int{0}}}
	for text, tokens := range map[string]float64{"ulysses=1": 4096, "ulysses=2": 2048} {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		blocks := newCosts(NewPartition(s.beside(&s.Nets[0], p)), s.Cluster).bound()
		want := 28 * 5 * tokens * 2 * 3072 * 3072 / s.Cluster.Device.GEMM
		if got := s.netSeconds(p) - blocks; !(math.Abs(got-want) <= 1e-9) {
			t.Errorf("%s: the output layers take %.6g s of a run, want %.6g", text, got, want)
		}
	}
}
