//go:build cgo && fakegpu

package parallel

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	nvidia "patchbay/engine/cuda/library"
	ncclib "patchbay/engine/cuda/nccl"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/localcuda"
	"patchbay/parallel/comm/nccl"
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
	{File: "nccl.cc", Old: "  if (k.end->gone) return;\n  for", New: "  if (1) return;\n  for"},
}

// hostSteps is the difference in steps between the two runs that BenchmarkHostCost subtracts.
const hostSteps = 24

// BenchmarkHostCost runs plans of one and of several ranks in one process on devices that compute nothing, and reports
// the CPU time of the host for one launch or exchange of a rank, and the wall time of a step, which also has what
// libraries do on threads of their own: of steps alone, beginning and end of a request are left out. "graphs" are CUDA
// graphs, whose launches are recorded once and not counted again. With NCCL every rank has a device of its own.
func BenchmarkHostCost(b *testing.B) {
	dir := fakegpu.Library(b, nullDriver...)
	for _, c := range []struct {
		plan    string
		eager   bool
		devices int // more than one: exchanges by NCCL
	}{
		{"", true, 1},
		{"ulysses=8", true, 1},
		{"ring=8", true, 1},
		{"tensor=8", true, 1},
		{"cfg=2,ulysses=4", true, 1},
		{"pipe=2,ulysses=4,patches=2,warmup=1", true, 1},
		{"", false, 1},
		{"ulysses=8", false, 1},
		{"ulysses=2", true, 2},
		{"ulysses=2", false, 2},
	} {
		name := c.plan
		if name == "" {
			name = "one-rank"
		}
		b.Run(fmt.Sprintf("%s/graphs=%v/devices=%d", name, !c.eager, c.devices), func(b *testing.B) {
			b.Setenv("FAKEGPU_DEVICES", fmt.Sprint(c.devices))
			driver, err := cuda.Open(dir)
			if err != nil {
				b.Fatal(err)
			}
			devices := make([]*cuda.Device, c.devices)
			for i := range devices {
				if devices[i], err = driver.Device(i); err != nil {
					b.Fatal(err)
				}
				defer func() { _ = devices[i].Close() }()
				devices[i].Eager = c.eager
			}
			dev, transport := devices[0], comm.Transport(localcuda.Transport{})
			if c.devices > 1 {
				lib, err := ncclib.Open(driver.Driver, &nvidia.Search{Folders: filepath.Join(dir, "nccl")})
				if err != nil {
					b.Fatal(err)
				}
				by := nccl.New(lib, localcuda.Transport{})
				defer func() { _ = by.Close() }()
				transport = by
			}
			of := func(rank int) int { return rank % c.devices }
			e, err := NewPool(Config{
				Transport: transport, DeviceOf: func(rank int) string { return fmt.Sprintf("cuda:%d", of(rank)) },
				NewOps: func(rank, _ int) (engine.Ops, error) { return devices[of(rank)].NewOps() },
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
			run := func(sigmas []float32) (used, wall float64) {
				at, before, began := dev.Counts(), processorTime(), time.Now()
				r.Sigmas = sigmas
				res, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					b.Fatal(err)
				}
				used, wall = processorTime()-before, time.Since(began).Seconds()
				now, n := dev.Counts(), float64(c.devices)
				launches, calls = n*float64(now.Launches-at.Launches), n*float64(now.Calls-at.Calls)
				exchanges, ranks = 0, float64(len(res.Stats.Traffic))
				for _, rank := range res.Stats.Traffic {
					for _, axis := range rank {
						exchanges += float64(axis.Calls)
					}
				}
				return 1e6 * used, 1e6 * wall
			}
			run(few)
			var list, walls []float64
			for b.Loop() {
				begun, beginning := run(few)
				l, x, c := launches, exchanges, calls
				used, wall := run(many)
				list, walls = append(list, (used-begun)/hostSteps), append(walls, (wall-beginning)/hostSteps)
				launches, exchanges, calls = (launches-l)/hostSteps, (exchanges-x)/hostSteps, (calls-c)/hostSteps
			}
			used := median(list)
			b.ReportMetric(used/(launches+exchanges), "cpu-us/launch+exchange")
			b.ReportMetric(calls/ranks, "driver-calls/step")
			b.ReportMetric(launches/ranks, "launches/step")
			b.ReportMetric(exchanges/ranks, "exchanges/step")
			b.ReportMetric(used/ranks, "cpu-us/step")
			b.ReportMetric(median(walls), "wall-us/step")
		})
	}
}
