package parallel

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/flux"
	"patchbay/models/sampling"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// benchModel returns a FLUX with heads of 64, 2 double and 4 single blocks, and seeded weights.
func benchModel(b testing.TB, width int) request.Model {
	b.Helper()
	c := flux.Config{
		Hidden: width, Heads: width / 64, Depth: 2, DepthSingle: 4, Axes: []int{16, 24, 24}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2,
		ContextDim: 128, VectorDim: 64, MLPHidden: 4 * width,
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
	return request.Model{Key: fmt.Sprintf("bench-%d", width), Spec: &d.Spec, Weights: request.LoadFunc(d.Load)}
}

// benchRequest returns 4 steps of a picture of side x side latents (64 are 512 px and 1024 tokens) with 128 text
// tokens, on a benchModel of that width.
func benchRequest(b testing.TB, width, side int) *request.Request {
	b.Helper()
	flow, err := sampling.NewFlow(1, 1)
	if err != nil {
		b.Fatal(err)
	}
	sigmas, err := sampling.MakeSigmas(flow, "simple", 4)
	if err != nil {
		b.Fatal(err)
	}
	l := request.NewLatent(1, 16, side, side)
	noise, _, err := sampling.PrepareNoise(1, 1, l.Len(), nil)
	if err != nil {
		b.Fatal(err)
	}
	entry := request.Entry{Strength: 1}
	entry.Context = dit.Array{Rows: 128, Cols: 128, Data: golden.Input("bench", 128*128)}
	return &request.Request{
		Model: benchModel(b, width), Sampling: flow, Sampler: "euler", Sigmas: sigmas, Latent: l,
		Noise:    request.Latent{B: 1, C: 16, Y: side, X: side, Data: noise},
		Branches: []request.Branch{{Name: "positive", Entries: []request.Entry{entry}}},
	}
}

// BenchmarkSwitches runs each plan of a 256 px picture with and without a switch, alternating, and reports the median
// ratio of time and of CPU time with it to without it over pairs of runs.
func BenchmarkSwitches(b *testing.B) {
	r := benchRequest(b, 768, 32)
	e, err := NewPool(Config{NewOps: testOps})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	for _, c := range [][2]string{
		{"ulysses=2", "ulysses=2,deterministic=on"},
		{"ring=2", "ring=2,deterministic=on"},
		{"pipe=2,patches=4,warmup=1,overlap=off", "pipe=2,patches=4,warmup=1"},
		{"ulysses=2,shard=on,overlap=off", "ulysses=2,shard=on"},
	} {
		b.Run(c[1], func(b *testing.B) {
			run := func(plan string) (wall, cpu float64) {
				r.Plan = plan
				before := processorTime()
				res, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					b.Fatal(err)
				}
				return median(res.Stats.StepSeconds), processorTime() - before
			}
			run(c[0])
			run(c[1])
			var walls, cpus []float64
			for i := 0; b.Loop(); i++ {
				var wall, cpu [2]float64
				for k := range 2 {
					k = (k + i) % 2
					wall[k], cpu[k] = run(c[k])
				}
				walls, cpus = append(walls, wall[1]/wall[0]), append(cpus, cpu[1]/cpu[0])
			}
			b.ReportMetric(median(walls), "time-ratio")
			b.ReportMetric(median(cpus), "cpu-ratio")
		})
	}
}

// BenchmarkPlans runs 4 steps of benchRequest on plans of one and two ranks that share the same processors. ms/step is
// the median step of all runs, cpu-ms/step the CPU time of everything but loading.
func BenchmarkPlans(b *testing.B) {
	r := benchRequest(b, 768, 64)
	e, err := NewPool(Config{NewOps: testOps})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
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

// processorTime returns the CPU time of this process in seconds: on a shared machine it tells more than the clock.
func processorTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// median returns the median of v, which it sorts.
func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
