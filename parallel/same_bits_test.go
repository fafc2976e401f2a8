package parallel

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/tests/race"
)

// sameBitsPlans returns the exact plans with deterministic=on, without their tensor groups, which it refuses.
func sameBitsPlans() (out []string) {
	seen := map[string]bool{}
	for _, text := range exactPlans() {
		if strings.Contains(text, "tensor=") { // one speed per rank
			text = regexp.MustCompile(`,speeds=[\d:]+`).ReplaceAllString(text, "")
		}
		text = regexp.MustCompile(`,?(tensor=\d|form=scatter|warmup=\d+)`).ReplaceAllString(text, "")
		text = strings.TrimPrefix(text, ",")
		if text != "" && !seen[text] {
			out = append(out, text+",deterministic=on")
		}
		seen[text] = true
	}
	return append(out, "pipe=2,ring=2,patches=3,kv=fp8,deterministic=on", "ring=2,ulysses=2,shard=on,deterministic=on")
}

// TestSameBits checks that with deterministic=on every plan gives the bits of one rank without it, on all families,
// with f32 and bf16 on alternate plans.
func TestSameBits(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for k, c := range []struct {
		name string
		y, x int
	}{
		{"flux-c", 7, 11},
		{"sd3-b", 5, 7},
		{"sd3-c", 6, 5},
		{"pixart-b", 4, 62},
		{"hydit-a", 7, 6},
		{"zimage", 7, 11},
		{"qwen-c", 9, 7},
		{"flux2-a", 5, 6},
	} {
		e := newEngine(t)
		g := openGolden(t, c.name)
		r := parityRequest(t, g, c.name, 2, c.y, c.x, 2)
		for half, compute := range []engine.DType{engine.F32, engine.BF16} {
			r.Plan, r.Compute = "", compute
			want, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, text := range somePlans(kinds(sameBitsPlans()), k, 12) {
				if i%2 != half && !soak {
					continue
				}
				text = planFor(g.model.Spec, text)
				t.Run(fmt.Sprintf("%s/%s/%s", c.name, compute, text), func(t *testing.T) {
					r.Plan = text
					got, err := e.Sample(context.Background(), r, nil)
					if err != nil {
						t.Fatal(err)
					}
					if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
						t.Errorf("value %d is %v, on one rank %v", at, got.Latent.Data[at], want.Latent.Data[at])
					}
				})
			}
		}
	}
}

// TestDeterministicEngines checks that on a deterministic engine all plans are deterministic, chosen ones included,
// that pictures are decoded whole, and that a plan that cannot be deterministic is refused.
func TestDeterministicEngines(t *testing.T) {
	e, err := NewPool(Config{NewOps: testOps, Recode: roundTrip, Deterministic: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 7, 11, 1)
	var want []float32
	for _, text := range []string{"", "ulysses=3", "ranks=4", "pipe=2"} {
		r.Plan = text
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text == "" {
			want = got.Latent.Data
		}
		if at := firstDifference(got.Latent.Data, want); at >= 0 || !strings.Contains(got.Stats.Plan, "deterministic=on") {
			t.Errorf("%q ran as %s: value %d differs from one rank", text, got.Stats.Plan, at)
		}
	}
	r.Plan = "tensor=2"
	var refused *fault.Error
	if _, err := e.Sample(context.Background(), r, nil); !errors.As(err, &refused) || refused.Field != "plan.tensor" {
		t.Errorf("tensor=2: got %v, want a refusal of plan.tensor", err)
	}
	err = e.Do(context.Background(), "vae", func(l *Workspace) error {
		if n := l.bands(); n != 1 {
			t.Errorf("pictures are decoded in %d bands: their sums have other bits", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
