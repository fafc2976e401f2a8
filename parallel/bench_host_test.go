//go:build cgo && fakegpu

package parallel

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm/localcuda"
	"patchbay/tests/fakegpu"
)

// nullDriver changes the fake device into one that computes nothing: a launch returns at once, and everything else is
// done as soon as it is issued.
var nullDriver = []fakegpu.Change{
	{File: "libcuda.cc", Old: `  const std::string &n = f->name;
  if (f->context != current)`, New: `  if (!s->captured) return PB_SUCCESS;
  const std::string &n = f->name;
  if (f->context != current)`},
	{
		File: "libcuda.cc", Old: "  s->queue.push_back({std::move(ready), std::move(run), std::move(waits)});\n",
		New: "  run();\n  return;\n",
	},
	{
		File: "libcuda.cc", Old: "    const char *bad = fk::launch(",
		New: "    if (1) return;\n    const char *bad = fk::launch(",
	},
}

// hostSteps is the difference in steps between the two runs that BenchmarkHostCost subtracts.
const hostSteps = 24

// BenchmarkHostCost runs plans of one and of 8 ranks in one process on a device that computes nothing, and reports the
// CPU time of the host for one launch or exchange of a rank, of steps alone: beginning and end of a request are left
// out. "graphs" are CUDA graphs, whose launches are recorded once and not counted again.
func BenchmarkHostCost(b *testing.B) {
	dir := fakegpu.Library(b, nullDriver...)
	for _, c := range []struct {
		plan  string
		eager bool
	}{
		{"", true},
		{"ulysses=8", true},
		{"ring=8", true},
		{"tensor=8", true},
		{"cfg=2,ulysses=4", true},
		{"pipe=2,ulysses=4,patches=2,warmup=1", true},
		{"", false},
		{"ulysses=8", false},
	} {
		name := c.plan
		if name == "" {
			name = "one-rank"
		}
		b.Run(fmt.Sprintf("%s/graphs=%v", name, !c.eager), func(b *testing.B) {
			driver, err := cuda.Open(dir)
			if err != nil {
				b.Fatal(err)
			}
			dev, err := driver.Device(0)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = dev.Close() }()
			dev.Eager = c.eager
			e, err := NewPool(Config{
				Transport: localcuda.Transport{}, DeviceOf: func(int) string { return "cuda:0" },
				NewOps: func(int, int) (engine.Ops, error) { return dev.NewOps() },
			})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			r := benchRequest(b, 512, 16)
			r.Plan = c.plan
			if c.plan == "cfg=2,ulysses=4" {
				r.Branches[0].Entries = append(r.Branches[0].Entries, r.Branches[0].Entries[0])
			}
			few, many := r.Sigmas, slices.Repeat(r.Sigmas[:1], hostSteps)
			for i := range many {
				many[i] *= 1 - float32(i)/hostSteps
			}
			many = append(many, r.Sigmas...)
			var launches, exchanges, calls, ranks float64
			run := func(sigmas []float32) (used float64) {
				at, before := dev.Counts(), processorTime()
				r.Sigmas = sigmas
				res, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					b.Fatal(err)
				}
				used = processorTime() - before
				now := dev.Counts()
				launches, calls = float64(now.Launches-at.Launches), float64(now.Calls-at.Calls)
				exchanges, ranks = 0, float64(len(res.Stats.Traffic))
				for _, rank := range res.Stats.Traffic {
					for _, axis := range rank {
						exchanges += float64(axis.Calls)
					}
				}
				return 1e6 * used
			}
			run(few)
			var list []float64
			for b.Loop() {
				begun := run(few)
				l, x, c := launches, exchanges, calls
				list = append(list, (run(many)-begun)/hostSteps)
				launches, exchanges, calls = (launches-l)/hostSteps, (exchanges-x)/hostSteps, (calls-c)/hostSteps
			}
			used := median(list)
			b.ReportMetric(used/(launches+exchanges), "cpu-us/launch+exchange")
			b.ReportMetric(calls/ranks, "driver-calls/step")
			b.ReportMetric(launches/ranks, "launches/step")
			b.ReportMetric(exchanges/ranks, "exchanges/step")
			b.ReportMetric(used/ranks, "cpu-us/step")
		})
	}
}
