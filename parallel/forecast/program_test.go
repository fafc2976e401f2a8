package forecast

import (
	"testing"

	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// runTiming returns the time at which the last actor of a program ends.
func runTiming(t *testing.T, timing timing) (seconds float64) {
	t.Helper()
	ends, _, err := newProgram(timing).net.run(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ends {
		seconds = max(seconds, e)
	}
	return seconds
}

// TestTransfersAndHandoverTimes compares runs with transfers and a hand-over at the sampler with closed forms. K
// synchronous evaluations of M on each of N stages take N M + (N-1) t + h each, where t is the transfers of all
// entries one after the other. On one stage with M patches of 1, the stage works without a pause while the hand-over
// of a patch fits behind the other patches, otherwise every evaluation takes 1 + h.
func TestTransfersAndHandoverTimes(t *testing.T) {
	const k = 5
	for stages := 1; stages <= 5; stages++ {
		for _, slots := range []int{0, 2, 3, unbounded} {
			for entries := 1; entries <= 3; entries++ {
				const patches, handover = 4, 0.75
				timing := plainTiming(stages, patches, k, k, false, slots)
				timing.entries, timing.handover = func(int) int { return entries }, handover
				timing.transfer = func(_, lane int, _ plan.Micro) float64 { return 0.5 + float64(lane) }
				want := float64(stages*patches) + handover
				for lane := range stages - 1 {
					want += float64(entries) * (0.5 + float64(lane))
				}
				if got := runTiming(t, timing); !near(got, k*want, 1e-9) {
					t.Errorf("%d stages, %d slots, %d entries: %.3f, closed form %.3f", stages, slots, entries, got,
						k*want)
				}
			}
		}
	}
	for _, handover := range []float64{0, 0.5, 2, 3, 7} {
		const patches = 4
		timing := plainTiming(1, patches, k, 0, false, unbounded)
		timing.handover = handover
		if got, want := runTiming(t, timing), (k-1)*max(patches, 1+handover)+patches+handover; !near(got, want, 1e-9) {
			t.Errorf("hand-over %.1f: %.3f, closed form %.3f", handover, got, want)
		}
	}
}

// TestSimulationCountsHandoverAndEveryTransfer checks that a hand-over at the sampler is paid once per evaluation, and
// a transfer once per entry, hop and evaluation, with the bytes of that entry.
func TestSimulationCountsHandoverAndEveryTransfer(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 5, "4xL40-pcie")
	s.Text = []int{512, 77, 256}
	p := planOf(t, "pipe=4,patches=1")
	seconds := func(f hardware.Cluster) *Simulation {
		t.Helper()
		sim := Search{Workload: s.Workload, Cluster: f}.Simulate(p)
		return sim
	}
	base := seconds(s.Cluster)
	f := s.Cluster
	f.Device.Handover += 0.25
	if sim := seconds(f); !near(sim.Seconds-base.Seconds, 5*0.25, 1e-9) ||
		!near(sim.HandoverSeconds-base.HandoverSeconds, 5*0.25, 1e-9) {
		t.Errorf("a hand-over of 0.25 s more takes %.6f s more, %.6f s of them without work: want 5 times 0.25 s",
			sim.Seconds-base.Seconds, sim.HandoverSeconds-base.HandoverSeconds)
	}
	f = s.Cluster
	f.Link.Latency += 0.125
	if sim := seconds(f); !near(sim.Seconds-base.Seconds, 5*3*3*0.125, 1e-9) {
		t.Errorf("0.125 s of latency more take %.6f s more, want 45 times that: 5 evaluations, 3 hops, 3 entries",
			sim.Seconds-base.Seconds)
	}
	f = s.Cluster
	f.Link.Bandwidth /= 100
	wire := func(f hardware.Cluster) hardware.Wire {
		return newCosts(NewPartition(s.Workload, p), f).wires[plan.AxisPipe]
	}
	want := 0.0
	for _, text := range s.Text {
		bytes := float64((text + s.Tokens()) * s.Spec.Width * f.Device.ValueBytes)
		want += 5 * 3 * (wire(f).Seconds(bytes) - wire(s.Cluster).Seconds(bytes))
	}
	if got := seconds(f).Seconds - base.Seconds; !near(got, want, 1e-9*want) {
		t.Errorf("a link of a hundredth of the bandwidth takes %.6f s more, the rows of all entries %.6f s", got, want)
	}
}
