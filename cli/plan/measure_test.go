package plan

import (
	"math"
	"testing"
	"time"

	"patchbay/daemon"
	"patchbay/engine/profile"
	"patchbay/parallel"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/race"
)

// demo returns a request of the demo's model.
func demo(t *testing.T, size string, steps int) *request.Request {
	t.Helper()
	trial := Trial{
		Model: "../../examples/demo/diffusion_models/demo_flux.safetensors", Size: size, Compute: "f32", Steps: steps,
		Text: 5, Entries: 2,
	}
	r, err := trial.Open("cpu")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestMeasuredRates checks that rates are the work of a run, as Simulate counts it, divided by the time of its
// operations without text, modulation and copies to the host. A machine measured so predicts the measured time.
func TestMeasuredRates(t *testing.T) {
	w := demo(t, "64x64", 3).Workload()
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
	if err := Measure(&m, w, spans, 4); err != nil {
		t.Fatal(err)
	}
	m.Device.Launch, m.Device.Handover = 0, 0
	alone := hardware.Cluster{Device: m.Device, Link: m.Link, Hosts: 1, PerHost: 1}
	sim := forecast.Search{Workload: w, Cluster: alone}.Simulate(plan.OneRank())
	if !(math.Abs(sim.Seconds-3.5) <= 1e-3) { // the gaps between operations come on top: 0.8 ms
		t.Errorf("the measured run took 3.5 s, the machine predicts %.9f s for it", sim.Seconds)
	}
	if err := Measure(&m, w, spans[:1], 4); err == nil {
		t.Error("rates were measured without attention")
	}
}

// TestMeasuredStages measures this machine with a profiled run, cuts stages accordingly, and logs their measured and
// predicted times. It does not judge times, but the sum over the stages must exist for every rank.
func TestMeasuredStages(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: times of a slowed program say nothing")
	}
	r := demo(t, "128x128", 4)
	r.Profile = true
	one, err := profiled(t.Context(), parallel.Config{NewOps: daemon.NewOps}, r)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	if err := Measure(&m, r.Workload(), one.Spans, 4); err != nil {
		t.Fatal(err)
	}
	r.Plan = "pipe=3,patches=3"
	stages, err := profiled(t.Context(), parallel.Config{NewOps: daemon.NewOps, Machine: &m}, r)
	if err != nil {
		t.Fatal(err)
	}
	took := make([]time.Duration, 3)
	for _, s := range stages.Spans {
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
