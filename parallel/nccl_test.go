//go:build cgo && fakegpu

package parallel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	nvidia "patchbay/engine/cuda/library"
	ncclib "patchbay/engine/cuda/nccl"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/localcuda"
	"patchbay/parallel/comm/nccl"
	"patchbay/parallel/request"
)

// onNCCL is a leader whose ranks exchange by NCCL, each on a GPU of its own.
type onNCCL struct {
	*Pool
	connects int // groups connected so far
}

// newNCCLEngine returns one on that many GPUs. Its communicators are released before the devices.
func newNCCLEngine(t *testing.T, devices int) *onNCCL {
	t.Helper()
	t.Setenv("FAKEGPU_DEVICES", fmt.Sprint(devices))
	out := &onNCCL{}
	out.Pool = newFakeEngineBy(t, devices, func(driver *cuda.Driver, dir string) comm.Transport {
		lib, err := ncclib.Open(driver.Driver, &nvidia.Search{Folders: filepath.Join(dir, "nccl")})
		if err != nil {
			t.Fatal(err)
		}
		transport := nccl.New(lib, localcuda.Transport{})
		t.Cleanup(func() { // after the leader
			if err := transport.Close(); err != nil {
				t.Error(err)
			}
		})
		return &counted{transport, &out.connects}
	})
	return out
}

// counted counts connected groups.
type counted struct {
	comm.Transport
	connects *int
}

func (c *counted) Connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	*c.connects++
	return c.Transport.Connect(g, ops)
}

// lone reduces a request to one entry without guidance.
func lone(r *request.Request, plan string) *request.Request {
	r.Branches[0].Entries = r.Branches[0].Entries[:1]
	r.Branches, r.Guider, r.Plan = r.Branches[:1], request.Guider{Kind: request.GuideBasic}, plan
	return r
}

// TestPlansOnFakeGPUsByNCCL checks that ranks with a GPU each that exchange by NCCL give one rank's numbers on the
// CPU.
func TestPlansOnFakeGPUsByNCCL(t *testing.T) {
	cpu := newEngine(t)
	for i, c := range []struct {
		model, plan  string
		ranks, steps int
		bound        float64
	}{
		{"flux-c", "ulysses=2,ring=2", 4, 1, 1e-5},
		{"flux-c", "gather=2,ulysses=2,shard=on", 4, 2, 1e-5},
		{"flux-c", "tensor=2,form=scatter", 2, 1, 1e-5},
		{"flux-c", "tensor=2,ulysses=2,shard=on", 4, 1, 1e-5},
		{"flux-c", "pipe=3,patches=3,warmup=1", 3, 2, 1e-5},
		{"flux-c", "pipe=2,ulysses=2,patches=2,warmup=1,kv=fp8", 4, 2, 1e-3},
		{"sd3-b", "cfg=2,tensor=2", 4, 1, 1e-5},
		{"hydit-a", "pipe=2,patches=2,warmup=1", 2, 2, 1e-5}, // both lanes of the folded stage on one device
	} {
		t.Run(c.model+"/"+c.plan, func(t *testing.T) {
			t.Setenv("FAKEGPU_SEED", fmt.Sprint(i+1))
			t.Setenv("FAKEGPU_PEERS", fmt.Sprint(i%2))
			r := lone(parityRequest(t, openGolden(t, c.model), c.model, 1, 4, 4, c.steps), c.plan)
			if strings.HasPrefix(c.plan, "cfg") {
				r = parityRequest(t, openGolden(t, c.model), c.model, 1, 4, 4, c.steps)
				r.Branches[0].Entries, r.Plan = r.Branches[0].Entries[:1], c.plan
			}
			want, err := cpu.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := newNCCLEngine(t, c.ranks).Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= c.bound) {
				t.Errorf("differs from the processors by %.3g, bound %g", rel, c.bound)
			}
		})
	}
}

// TestNCCLOnFakeGPUs checks that the run after a canceled one reuses its communicators and gives the same bits, that
// an error that NCCL reports asynchronously ends a run by name, and that the run after it has new communicators.
func TestNCCLOnFakeGPUs(t *testing.T) {
	if os.Getenv("PATCHBAY_TEST_CUDA") != "" {
		t.Skip("NOT RUN: only the fake library fails when it is told to")
	}
	lost := filepath.Join(t.TempDir(), "lost")
	t.Setenv("FAKEGPU_NCCL_ERROR", lost)
	e := newNCCLEngine(t, 2)
	r := lone(parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 4, 4, 2), "ulysses=2")
	want, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	connects := e.connects
	again := func(what string) {
		t.Helper()
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if relative(got.Latent.Data, want.Latent.Data) != 0 {
			t.Errorf("%s: other bits", what)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = e.Sample(ctx, r, func(request.Progress) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run: %v", err)
	}
	again("after a cancelled run")
	if e.connects != connects {
		t.Errorf("%d groups were connected anew", e.connects-connects)
	}
	_, err = e.Sample(context.Background(), r, func(request.Progress) error { // between two steps
		if _, err := os.Stat(lost); err != nil {
			if err := os.WriteFile(lost, nil, 0o600); err != nil {
				return err
			}
			for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(lost); err != nil { // it was seen
					break
				}
			}
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "NCCL") || !strings.Contains(err.Error(), "remote process exited") {
		t.Errorf("a lost peer: %v", err)
	}
	again("after a lost peer")
	if e.connects == connects {
		t.Error("the communicators of a run that failed are in use again")
	}
}
