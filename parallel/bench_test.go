package parallel

import (
	"context"
	"slices"
	"syscall"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/flux"
	"patchbay/models/sampling"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// benchModel is a FLUX of 12 heads of 64, 2 double and 4 single blocks with seeded weights.
func benchModel(b *testing.B) Model {
	b.Helper()
	c := flux.Config{
		Hidden: 768, Heads: 12, Depth: 2, DepthSingle: 4, Axes: []int{16, 24, 24}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2,
		ContextDim: 128, VectorDim: 64, MLPHidden: 3072,
	}
	d, err := c.Describe(nil)
	if err != nil {
		b.Fatal(err)
	}
	declared, err := d.Declare()
	if err != nil {
		b.Fatal(err)
	}
	if d, err = c.Describe(goldenweights.Seed("bench", declared)); err != nil {
		b.Fatal(err)
	}
	return Model{Key: "bench", Spec: &d.Spec, Weights: LoadFunc(d.Load)}
}

// BenchmarkPlans runs 4 steps of a 512 px picture (1024 image, 128 text tokens) on plans of one and two ranks that
// share the same processors. ms/step is the median step of all runs, cpu-ms/step the processor time of everything but
// loading.
func BenchmarkPlans(b *testing.B) {
	model := benchModel(b)
	e, err := NewEngine(Config{NewOps: testOps})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	flow, err := sampling.NewFlow(1, 1)
	if err != nil {
		b.Fatal(err)
	}
	sigmas, err := sampling.MakeSigmas(flow, "simple", 4)
	if err != nil {
		b.Fatal(err)
	}
	l := NewLatent(1, 16, 64, 64)
	noise, _, err := sampling.PrepareNoise(1, 1, l.Len(), nil)
	if err != nil {
		b.Fatal(err)
	}
	entry := Entry{Strength: 1}
	entry.Context = dit.Array{Rows: 128, Cols: 128, Data: golden.Input("bench", 128*128)}
	r := &Request{
		Model: model, Sampling: flow, Sampler: "euler", Sigmas: sigmas, Latent: l,
		Noise:    Latent{B: 1, C: 16, Y: 64, X: 64, Data: noise},
		Branches: []Branch{{Name: "positive", Entries: []Entry{entry}}},
	}
	for _, plan := range []string{
		"", "ulysses=2", "ring=2", "tensor=2", "pipe=2,patches=4,warmup=1",
		"pipe=2,patches=4,warmup=1,sync=spread",
	} {
		name := plan
		if name == "" {
			name = "one-rank"
		}
		b.Run(name, func(b *testing.B) {
			r := *r
			r.Plan = plan
			var steps []float64
			before := processorTime()
			for b.Loop() {
				res, err := e.Sample(context.Background(), &r, nil)
				if err != nil {
					b.Fatal(err)
				}
				steps = append(steps, res.Stats.StepSeconds...)
			}
			b.ReportMetric(1000*median(steps), "ms/step")
			b.ReportMetric(1000*(processorTime()-before)/float64(len(steps)), "cpu-ms/step")
		})
	}
}

// processorTime is what this process has used, in seconds: on a shared machine it tells more than the clock.
func processorTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// median of values, which it sorts.
func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
