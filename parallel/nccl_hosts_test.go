//go:build cgo && fakegpu

package parallel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	nvidia "patchbay/engine/cuda/library"
	ncclib "patchbay/engine/cuda/nccl"
	"patchbay/fault"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/nccl"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
	"patchbay/parallel/request"
	"patchbay/tests/fakegpu"
)

// onGPUs is processes of ranks with a fake GPU each, which exchange by NCCL or through host memory.
type onGPUs struct {
	*hosts
	*Pool
	byNCCL atomic.Int64 // meshes that exchange by NCCL
}

func newOnGPUs(t *testing.T, devices int, version func(process int) string) *onGPUs {
	t.Helper()
	if os.Getenv("PATCHBAY_TEST_CUDA") != "" {
		t.Skip("NOT RUN: one process has several fake GPUs here, as a real one would not be shared")
	}
	t.Setenv("FAKEGPU_DEVICES", fmt.Sprint(devices))
	t.Setenv("FAKEGPU_BOARD", t.TempDir())
	dir := fakegpu.Library(t)
	driver, err := cuda.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := ncclib.Open(driver.Driver, &nvidia.Search{Folders: filepath.Join(dir, "nccl")})
	if err != nil {
		t.Fatal(err)
	}
	open := make([]*cuda.Device, devices)
	for i := range open {
		if open[i], err = driver.Device(i); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := open[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	out := &onGPUs{}
	out.Pool, out.hosts = newPatientHosts(t, 5*time.Minute)
	out.device = func(p int, c *process.Config, offer *remote.Config) {
		c.NewOps = func(int, int) (engine.Ops, error) { return open[p%devices].NewOps() }
		c.DeviceOf = func(int) string { return fmt.Sprintf("cuda:%d", p%devices) }
		offer.NCCL = version(p)
		offer.Over = func(mesh comm.Transport) (comm.Transport, func() error) {
			out.byNCCL.Add(1)
			t := nccl.NewBetween(lib, mesh)
			return t, t.Close
		}
	}
	return out
}

func sameNCCL(int) string { return "2.21.5" }

// TestPlansOnFakeGPUsInProcesses checks that ranks in processes of their own, each on a GPU, give the numbers of one
// rank on the CPU, by NCCL and, where one process has none, through host memory.
func TestPlansOnFakeGPUsInProcesses(t *testing.T) {
	cpu := newEngine(t)
	for i, c := range []struct {
		model, plan  string
		ranks, steps int
		bound        float64
		ways         string
	}{
		{"flux-c", "ring=2", 2, 1, 1e-5, "nccl"},
		{"flux-c", "gather=2", 2, 2, 1e-5, "nccl host"},
		{"flux-c", "tensor=2,form=scatter", 2, 1, 1e-5, "nccl host"},
		{"flux-c", "pipe=2,ulysses=2,patches=2,warmup=1,kv=fp8", 4, 2, 1e-3, "nccl host"},
		{"sd3-b", "cfg=2", 2, 1, 1e-5, "nccl"},
		{"hydit-a", "pipe=2,patches=2,warmup=1", 2, 2, 1e-5, "nccl"}, // both lanes of the folded stage on one device
	} {
		for _, way := range strings.Fields(c.ways) {
			version := sameNCCL
			if way == "host" {
				version = func(p int) string { return []string{"2.21.5", ""}[p%2] }
			}
			t.Run(c.model+"/"+c.plan+"/"+way, func(t *testing.T) {
				t.Setenv("FAKEGPU_SEED", fmt.Sprint(i+1))
				r := parityRequest(t, openGolden(t, c.model), c.model, 1, 4, 4, c.steps)
				if r.Branches[0].Entries, r.Plan = r.Branches[0].Entries[:1], c.plan; c.plan != "cfg=2" {
					r = lone(r, c.plan)
				}
				want, err := cpu.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				e := newOnGPUs(t, c.ranks, version)
				e.weights(r)
				got, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= c.bound) {
					t.Errorf("differs from the processors by %.3g, bound %g", rel, c.bound)
				}
				if n := e.byNCCL.Load(); (n == int64(c.ranks)) != (way == "nccl") {
					t.Errorf("%d processes exchanged by NCCL", n)
				}
			})
		}
	}
}

// TestAProcessOnAFakeGPUIsLost checks that a run ends at once and names the process of a rank that dies while others
// wait for it on their devices, although NCCL wakes none of them. A cancel between two steps ends the run too, and the
// next run has the bits of the first.
func TestAProcessOnAFakeGPUIsLost(t *testing.T) {
	e := newOnGPUs(t, 2, sameNCCL)
	r := lone(parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 4, 4, 2), "ulysses=2")
	e.weights(r)
	want, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := func(what string, starts int) {
		t.Helper()
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if relative(got.Latent.Data, want.Latent.Data) != 0 {
			t.Errorf("%s: other bits", what)
		}
		if e.starts != starts {
			t.Errorf("%s: processes were started %d times, want %d", what, e.starts, starts)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = e.Sample(ctx, r, func(request.Progress) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run: %v", err)
	}
	again("after a cancel", 1)
	_, err = e.Sample(context.Background(), r, func(request.Progress) error { return e.conns[1].Close() })
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.HostLost || !strings.Contains(f.Error(), "process 1 has gone") {
		t.Errorf("got %v, want a loss of process 1", err)
	}
	again("after a loss", 2)
}
