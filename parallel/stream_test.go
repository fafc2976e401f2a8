package parallel

import (
	"context"
	"fmt"
	"testing"

	"patchbay/engine"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/weights"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// streamPlans returns plans that bring blocks from host memory.
func streamPlans() []string {
	return []string{
		"stream=on", "stream=2", "stream=3", "stream=4,overlap=off", "ulysses=2,stream=on", "ring=3,stream=3",
		"cfg=2,stream=2", "data=2,stream=on", "tensor=2,stream=3", "tensor=2,form=scatter,ulysses=2,stream=on",
		"pipe=2,patches=3,warmup=1,stream=on", "pipe=3,patches=2,warmup=1,stream=1", "pipe=2,ulysses=2,patches=2,stream=2",
		"ulysses=2,shard=on,stream=on", "cfg=2,ring=2,shard=on,stream=2", "tensor=2,ulysses=2,shard=on,stream=3",
		"ulysses=2,shard=on,stream=3,overlap=off", "pipe=2,patches=2,warmup=1,kv=fp8,stream=on",
	}
}

// withoutStream returns a plan whose picture is that of a plan with stream: the same stages, each with its own weights.
func withoutStream(t *testing.T, text string) string {
	t.Helper()
	p := planOf(t, text)
	if p.Stream = 0; p.Pipe > 1 {
		p.Shard = true
	}
	if p == plan.OneRank() {
		return ""
	}
	return p.String()
}

// TestStreamedPlansEqualWholeWeights checks that blocks from host memory give the bits of weights that stay on the
// device, on every kind of plan and of every family, and that a second run gives the bits of the first.
func TestStreamedPlansEqualWholeWeights(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for i, f := range families(t) {
		e, h := newEngine(t), &holder{}
		r := strictRequest(t, h, f.name, 2, f.y, f.x, 2)
		plans := everyNth(streamPlans(), i, 6) // each on two families
		if testing.Short() {
			plans = everyNth(streamPlans(), i, 18)
		}
		for _, text := range plans {
			t.Run(f.name+"/"+text, func(t *testing.T) {
				whole, streamed := *r, *r
				whole.Plan, streamed.Plan = withoutStream(t, text), text
				want, err := e.Sample(context.Background(), &whole, nil)
				if err != nil {
					t.Fatal(err)
				}
				h.opened = 0
				for range 2 { // the second run finds the leftovers of the first
					got, err := e.Sample(context.Background(), &streamed, nil)
					if err != nil {
						t.Fatal(err)
					}
					if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
						t.Fatalf("element %d is %v, with whole weights %v: want equal bits", at, got.Latent.Data[at],
							want.Latent.Data[at])
					}
					for rank, sent := range got.Stats.Traffic {
						if sent[plan.AxisStream].Calls == 0 {
							t.Errorf("rank %d has read nothing from host memory", rank)
						}
					}
				}
				if h.opened == 0 {
					t.Error("no unit was ever brought")
				}
			})
		}
	}
}

// TestAdaptersGoWithStreams checks that LoRA adapters stay on the device and work beside blocks from host memory.
func TestAdaptersGoWithStreams(t *testing.T) {
	e := newEngine(t)
	r := tinyRequest(t, "flux", 1, 9, 8, 2)
	plain, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	width, load := r.Model.Spec.Width, describe(t, "flux").Load
	stored := func(name string, shape ...int) weights.Stored {
		return weights.Floats(golden.Input(name, shape[0]*shape[1]), shape...)
	}
	r.Model.Key = "tiny-flux+lora"
	r.Model.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		m, err := load(ops, held)
		if err != nil {
			return nil, err
		}
		return models.Adapt(ops, &dit.Shared{Model: m, Free: m.Close}, []weights.LowRank{
			{Name: "double_blocks.1.img_attn.qkv", Down: stored("down", 3, width), Up: stored("up", 3*width, 3), Scale: 0.05},
			{
				Name: "single_blocks.0.linear2", Down: stored("down2", 2, 5*width),
				Up: stored("up2", width, 2), Scale: 0.05,
			},
		})
	})
	var want []float32
	for _, text := range []string{"", "stream=on", "stream=4", "tensor=2", "tensor=2,stream=on"} {
		r.Plan = text
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if planOf(t, text).Stream == 0 {
			want = got.Latent.Data
		}
		if at := firstDifference(got.Latent.Data, want); at >= 0 {
			t.Errorf("%s: element %d is %v, with whole weights %v: want equal bits", text, at, got.Latent.Data[at], want[at])
		}
		if relative(got.Latent.Data, plain.Latent.Data) < 1e-3 {
			t.Errorf("%s: the additions change nothing", text)
		}
	}
}

// TestStreamFollowsTheBudget checks how many blocks come from host memory: with stream=on and no limit all, with one as
// few as fit; with stream=auto none where all fit; and that what is then resident is within the budget.
func TestStreamFollowsTheBudget(t *testing.T) {
	r := tinyRequest(t, "flux", 1, 9, 8, 1)
	r.Model.WeightBytes = 4 * r.Model.Spec.Params
	one, err := newEngine(t).Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := r.Model.WeightBytes + one.Stats.PeakBytes
	for _, c := range []struct {
		plan   string
		budget int64
		want   string
	}{
		{"stream=on", 0, "stream=7"},
		{"stream=auto", 0, "one rank"},
		{"stream=auto", whole * 5 / 4, "one rank"},
		{"stream=on", whole * 5 / 4, "stream=2"},
		{"stream=auto", whole * 21 / 20, "stream=4"},
		{"stream=auto", whole * 4 / 5, "stream=6"},
	} {
		t.Run(fmt.Sprint(c.plan, " of ", c.budget), func(t *testing.T) {
			e, err := NewPool(Config{NewOps: testOps, MemoryBytes: c.budget})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			r := *r
			r.Plan = c.plan
			res, err := e.Sample(context.Background(), &r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.Stats.Plan != c.want {
				t.Errorf("ran %s, want %s", res.Stats.Plan, c.want)
			}
			if at := firstDifference(res.Latent.Data, one.Latent.Data); at >= 0 {
				t.Errorf("element %d differs from the run with whole weights", at)
			}
		})
	}
}
