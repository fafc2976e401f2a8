package parallel

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/parallel/request"
)

// snr returns the power of want over that of the difference in dB, or -Inf if they cannot be compared.
func snr(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(-1)
	}
	signal, noise := 0.0, 0.0
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		signal, noise = signal+float64(w)*float64(w), noise+d*d
	}
	return decibels(signal, noise)
}

// TestBF16ActivationsStayNearF32 runs every family with bf16 activations on every kind of plan. It checks that the
// latent stays near that of f32, that a second run has the same bits, and that exchanges carry half the bytes. The
// weights are random, so errors grow faster than in a trained model.
func TestBF16ActivationsStayNearF32(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestSameBits runs every other plan in bf16")
	}
	e := newEngine(t)
	for k, family := range splitNames(t) {
		t.Run(family, func(t *testing.T) {
			y, x, steps := 13, 11, 3
			switch family {
			case "pixart":
				y, x = 4, 62
			case "flux2", "krea2":
				steps = 2 // their random weights lose 2 dB a step: flux2 34, 32, 30
			case "auraflow":
				steps = 1 // on one rank 32.0 dB, after two steps 28.7
			}
			run := func(plan string, compute engine.DType) *request.Result {
				req := tinyRequest(t, family, 2, y, x, steps)
				req.Plan, req.Compute = plan, compute
				if family == "qwenimage21" { // which rounds timesteps to bf16; these are such numbers
					req.Sigmas = []float32{1, 0.5, 0.25, 0}
				}
				out, err := e.Sample(context.Background(), req, nil)
				if err != nil {
					t.Fatalf("%s: %v", plan, err)
				}
				return out
			}
			plans := []string{
				"tensor=2,form=scatter", "pipe=2,ring=2,ulysses=2,warmup=99", "", "ulysses=3", "ring=2",
				"tensor=2", "cfg=2,ulysses=2", "pipe=2,patches=2,warmup=99",
			}
			for _, plan := range everyNth(plans, k, 8) {
				wide, narrow, again := run(plan, engine.F32), run(plan, engine.BF16), run(plan, engine.BF16)
				if db := snr(narrow.Latent.Data, wide.Latent.Data); !(db >= 30) || db > 120 {
					t.Errorf("plan %q: bf16 is %.1f dB from f32, want at least 30 (and not the same)", plan, db)
				}
				for i, v := range narrow.Latent.Data {
					if math.Float32bits(v) != math.Float32bits(again.Latent.Data[i]) {
						t.Errorf("plan %q: element %d is %v, then %v", plan, i, v, again.Latent.Data[i])
						break
					}
				}
				if narrow.Stats.Compute != engine.BF16 || wide.Stats.Compute != engine.F32 {
					t.Errorf("plan %q: statistics name %s and %s", plan, narrow.Stats.Compute, wide.Stats.Compute)
				}
				for r := range wide.Stats.Traffic {
					for a, w := range wide.Stats.Traffic[r] {
						if n := narrow.Stats.Traffic[r][a]; n.Bytes*2 != w.Bytes || n.Calls != w.Calls {
							t.Errorf("plan %q, rank %d, axis %d: %d bytes in %d calls, f32 has %d in %d", plan, r, a, n.Bytes,
								n.Calls, w.Bytes, w.Calls)
						}
					}
				}
				if wide.Stats.PeakBytes <= narrow.Stats.PeakBytes {
					t.Errorf("plan %q: %d bytes with bf16, %d with f32", plan, narrow.Stats.PeakBytes, wide.Stats.PeakBytes)
				}
			}
		})
	}
}

// TestComputeIsChecked checks that another element type is refused by name.
func TestComputeIsChecked(t *testing.T) {
	req := tinyRequest(t, "flux", 1, 8, 8, 1)
	req.Compute = engine.F16
	_, err := newEngine(t).Sample(context.Background(), req, nil)
	var refused *fault.Error
	if !errors.As(err, &refused) || refused.Field != "compute" || !strings.Contains(refused.Text, "f32 or bf16") {
		t.Errorf("compute f16: got %v, want a refusal of the field that names f32 and bf16", err)
	}
}

// TestBF16PicturesOfPlans checks that pictures of exact plans are those of one rank in f32, and that in bf16, where
// each plan rounds in other places and few steps of a stochastic sampler amplify that most, they are at most 6 dB
// farther from one rank than bf16 is from f32 (seen: 3).
func TestBF16PicturesOfPlans(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestSameBits runs every other plan in bf16")
	}
	b := newDriftBench(t)
	plans := []string{
		"tensor=2", "ulysses=2", "ulysses=4", "ring=2", "tensor=2,form=scatter", "cfg=2", "pipe=2,patches=2,warmup=99",
	}
	if !soak {
		plans, b.seeds = plans[:1], 1
	}
	for _, c := range []struct {
		sampler string
		steps   int
	}{{"dpmpp_sde", 4}, {"euler", 12}} {
		if !soak && c.steps > 4 {
			continue
		}
		b.sampler, b.steps, b.compute = c.sampler, c.steps, engine.F32
		wide := b.pictures("")
		b.compute = engine.BF16
		narrow := b.pictures("")
		bound := meanPSNR(narrow, wide)
		t.Logf("%s, %d steps: bf16 is %.1f dB from f32 on one rank", c.sampler, c.steps, bound)
		for _, plan := range plans {
			b.compute = engine.F32
			exact := meanPSNR(b.pictures(plan), wide)
			b.compute = engine.BF16
			db := meanPSNR(b.pictures(plan), narrow)
			t.Logf("%s, %d steps, %s: %.1f dB from one rank in f32, %.1f dB in bf16", c.sampler, c.steps, plan, exact, db)
			if !(exact >= 80) {
				t.Errorf("%s, %s: %.1f dB from one rank in f32, want 80", c.sampler, plan, exact)
			}
			if !(db >= bound-6) {
				t.Errorf("%s, %s: %.1f dB from one rank in bf16, which is %.1f dB from f32", c.sampler, plan, db, bound)
			}
		}
	}
}
