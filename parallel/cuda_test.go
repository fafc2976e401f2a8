//go:build cgo

package parallel

import (
	"context"
	"fmt"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm/localcuda"
	"patchbay/tests/fakegpu"
)

// newFakeEngine makes an engine whose ranks are on so many fake GPUs in turn, and finds what was not freed at the end
// of the test.
func newFakeEngine(t *testing.T, devices int) *Engine {
	t.Helper()
	driver, err := cuda.Open(fakegpu.Library(t))
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
	e, err := NewEngine(Config{
		Recode: roundTrip, Transport: localcuda.Transport{}, Patience: 5 * time.Minute,
		DeviceOf: func(rank int) string { return fmt.Sprintf("cuda:%d", rank%devices) },
		NewOps:   func(rank, _ int) (engine.Ops, error) { return open[rank%devices].NewOps() },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestPlansOnFakeGPUs: every kind of plan on two to four ranks, on one device, on two that reach each other's memory
// and on two that do not, gives the numbers of the same plan on the processors, and a second run on the same ranks the
// same bits.
func TestPlansOnFakeGPUs(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	cpu := newEngine(t)
	for i, c := range []struct {
		model, plan string
		bound       float64
		again       bool // run twice
	}{
		{"flux-c", "", 1e-5, false},
		{"flux-c", "ulysses=2", 1e-5, true},
		{"flux-c", "ring=2", 1e-5, false},
		{"flux-c", "tensor=2", 1e-5, false},
		{"flux-c", "tensor=2,form=scatter", 1e-5, false},
		{"flux-c", "ulysses=2,shard=on", 1e-5, true},
		{"flux-c", "pipe=2,patches=3,warmup=1", 1e-5, true},
		{"flux-c", "pipe=2,ulysses=2,patches=2,warmup=1,sync=spread", 1e-5, false},
		{"flux-c", "pipe=2,patches=2,warmup=1,kv=fp8", 1e-3, false}, // a rounding in the last bit becomes one in the fourth
		{"flux-c", "pipe=2,patches=2,warmup=1,overlap=off,shard=on", 1e-5, false},
		{"sd3-b", "cfg=2", 1e-5, false},
		{"hydit-a", "pipe=2,patches=2,warmup=1", 1e-5, false}, // both ways of the folded stage on one device
	} {
		t.Run(c.model+"/"+c.plan, func(t *testing.T) {
			t.Setenv("FAKEGPU_SEED", fmt.Sprint(i+1))
			t.Setenv("FAKEGPU_PEERS", fmt.Sprint(i/2%2))
			r := parityRequest(t, openGolden(t, c.model), c.model, 1, 4, 5, 2)
			r.Branches[0].Entries = r.Branches[0].Entries[:1]
			r.Plan = c.plan
			want, err := cpu.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			e := newFakeEngine(t, 1+i%2)
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= c.bound) {
				t.Errorf("differs from the processors by %.3g, bound %g", rel, c.bound)
			}
			if !c.again {
				return
			}
			again, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if relative(again.Latent.Data, got.Latent.Data) != 0 {
				t.Error("the second run differs")
			}
		})
	}
}

// TestSumsOfBF16OnFakeGPUs: sums of bf16 parts, each rank's own memory, are near those of f32.
func TestSumsOfBF16OnFakeGPUs(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 4, 4, 1)
	r.Branches[0].Entries = r.Branches[0].Entries[:1]
	want, err := newEngine(t).Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Plan, r.Compute = "tensor=2", engine.BF16
	got, err := newFakeEngine(t, 2).Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if db := snr(got.Latent.Data, want.Latent.Data); !(db >= 30) {
		t.Errorf("bf16 is %.1f dB from f32, want at least 30", db)
	}
}
