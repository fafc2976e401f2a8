package forecast

import (
	"testing"

	"patchbay/models/published"
	"patchbay/parallel/plan"
)

// TestHalvesHideExchanges checks that heads=halves saves much on PCIe links, and less than nothing where starting
// exchanges takes longer than the exchanges. It hides at most half of the exchanges and at most the attention.
func TestHalvesHideExchanges(t *testing.T) {
	m, err := published.Find("flux-dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		devices   string
		low, high float64 // share of the time that is saved
	}{
		{"4xL40-pcie", 0.05, 0.12},
		{"4xH100-nvlink", -0.05, 0},
	} {
		f, err := ParseCluster(c.devices)
		if err != nil {
			t.Fatal(err)
		}
		w := Workload{
			Spec: m.Spec, Y: 1024 / m.Scale, X: 1024 / m.Scale, Batch: 1, Text: []int{m.Text}, Evaluations: m.Steps,
			Device: f.Device,
		}
		var seconds [2]float64
		for i, text := range []string{"ulysses=4", "ulysses=4,heads=halves"} {
			p, err := plan.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			s := Simulate(w, p, f)
			seconds[i] = s.Seconds
		}
		if saved := 1 - seconds[1]/seconds[0]; !(saved > c.low && saved < c.high) {
			t.Errorf("%s: %.3f s in halves, %.3f s without: saves %.3f, want %.2f to %.2f", c.devices, seconds[1], seconds[0],
				saved, c.low, c.high)
		}
	}
}
