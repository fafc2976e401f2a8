package parallel

import (
	"context"
	"testing"
	"time"

	"patchbay/engine/profile"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/tests/race"
)

// TestMeasuredRates checks that rates are the work of a run, as Simulate counts it, divided by the time of its
// operations without text, modulation and copies to the host. A machine measured so predicts the measured time.
func TestMeasuredRates(t *testing.T) {
	r := tinyRequest(t, "flux", 1, 16, 16, 3)
	w := r.Workload()
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	spans := []profile.Span{
		{Layer: "qkv", Op: "Linear", Took: 2 * time.Second},
		{Layer: "attention", Op: "Attention", Took: time.Second},
		{Layer: "mlp", Op: "AdaLN", Took: time.Second / 2},
		{Layer: "text", Op: "Linear", Took: time.Hour},
		{Layer: "modulation", Op: "Linear", Took: time.Hour},
		{Layer: "embed", Op: "Upload", Took: time.Hour},
	}
	if err := forecast.Measure(&m, w, spans, 4); err != nil {
		t.Fatal(err)
	}
	m.Device.Launch, m.Device.Handover = 0, 0
	alone := hardware.Cluster{Device: m.Device, Link: m.Link, Hosts: 1, PerHost: 1}
	sim := forecast.Search{Workload: w, Cluster: alone}.Simulate(plan.OneRank())
	if !near(sim.Seconds, 3.5, 1e-3) { // the gaps between operations come on top: 0.8 ms
		t.Errorf("the measured run took 3.5 s, the machine predicts %.9f s for it", sim.Seconds)
	}
	if err := forecast.Measure(&m, w, spans[:1], 4); err == nil {
		t.Error("rates were measured without attention")
	}
}

// TestMeasuredStages measures this machine with a profiled run, cuts stages accordingly, and logs their measured and
// predicted times. It does not judge times, but the sum over the stages must exist for every rank.
func TestMeasuredStages(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: times of a slowed program say nothing")
	}
	plain := newEngine(t)
	r := tinyRequest(t, "flux", 1, 32, 32, 4)
	r.Profile = true
	one, err := plain.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	if err := forecast.Measure(&m, r.Workload(), one.Stats.Spans, 4); err != nil {
		t.Fatal(err)
	}
	e, err := NewPool(Config{NewOps: testOps, Machine: &m})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r.Plan = "pipe=3,patches=3"
	res, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	took := make([]time.Duration, 3)
	for _, s := range res.Stats.Spans {
		if s.Layer != "exchange" && s.Layer != "text" && s.Layer != "modulation" {
			took[s.Rank] += s.Took
		}
	}
	p, err := plan.Parse(r.Plan)
	if err != nil {
		t.Fatal(err)
	}
	three := hardware.Cluster{Device: m.Device, Link: m.Link, Hosts: 1, PerHost: 3}
	sim := forecast.Search{Workload: r.Workload(), Cluster: three}.Simulate(p)
	for k, d := range took {
		t.Logf("stage %d: measured %v, predicted %v", k, d, time.Duration(sim.Ranks[k].Compute*1e9))
		if d <= 0 {
			t.Errorf("stage %d has computed nothing", k)
		}
	}
}
