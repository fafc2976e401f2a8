package parallel

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	late "patchbay/engine/deferred"
	"patchbay/fault"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/comm/deferred"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// newDeferredEngine returns a leader whose ranks are streams of one deferred device.
func newDeferredEngine(t *testing.T, seed uint64) *Pool {
	t.Helper()
	device := late.NewDevice(seed)
	e, err := NewPool(Config{
		Recode: roundTrip, Transport: deferred.Transport{}, Patience: 2 * time.Minute,
		NewOps: func(rank, ranks int) (engine.Ops, error) {
			ops, err := testOps(rank, ranks)
			return device.Ops(ops), err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// stalePlans returns plans whose pictures differ from those of one rank.
func stalePlans() []string {
	return []string{
		"pipe=2,patches=3,warmup=1", "pipe=2,patches=3,warmup=1,overlap=off", "pipe=3,patches=5,warmup=1,ulysses=2",
		"pipe=2,ring=2,patches=3,warmup=1",
		"cfg=2,pipe=2,tensor=2,patches=2,warmup=1", "pipe=2,patches=3,warmup=1,sync=spread",
		"pipe=2,ulysses=2,patches=4,warmup=1,sync=spread",
		"pipe=2,patches=3,warmup=1,kv=fp8", "pipe=2,tensor=2,form=scatter,patches=3,warmup=2",
	}
}

// shardPlans returns plans that shard the weights.
func shardPlans() []string {
	return []string{
		"ulysses=2,shard=on", "ulysses=2,shard=on,overlap=off", "cfg=2,ring=2,shard=on", "tensor=2,ulysses=2,shard=on",
		"gather=2,shard=on",
		"pipe=2,patches=3,warmup=1,shard=on", "pipe=2,ulysses=2,patches=2,shard=on",
	}
}

// TestLateRanksGiveTheSameBits checks for every plan that ranks whose calls and exchanges run as late as a device may
// run them, in several orders, give the bits of ranks whose calls run at once: nothing is read before it is written,
// sent from overwritten memory, or freed while it is read. Exact plans must also equal one rank
// (TestExactPlansEqualOneRank has other networks).
func TestLateRanksGiveTheSameBits(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	exact := kinds(exactPlans())
	plans := slices.Concat([]string{""}, stalePlans(), shardPlans(), streamPlans(), exact)
	for k, names := range recordedNetworks(t) {
		c := sized(t, names[k%len(names)], k+1, append([][2]int{{9, 5}}, oddSides()...)...)
		t.Run(c.name, func(t *testing.T) {
			now := newEngine(t)
			r := parityRequest(t, openGolden(t, c.name), c.name, 2, c.y, c.x, 3)
			two := *r // exact plans repeat after one evaluation, stale ones after two
			two.Sigmas = slices.Concat(r.Sigmas[:2], r.Sigmas[3:])
			one, err := now.Sample(context.Background(), &two, nil)
			if err != nil {
				t.Fatal(err)
			}
			// as late as possible, and in an order of its own. Each plan meets the leftovers of the one before.
			engines := []*Pool{newDeferredEngine(t, 0), newDeferredEngine(t, uint64(k+1))}
			some := everyNth(plans, k, 11)
			if r.Model.Spec.Context2Dim > 0 && !soak && !testing.Short() { // folded stages share their stores
				for _, plan := range stalePlans() {
					if strings.Contains(plan, "sync=spread") && !slices.Contains(some, plan) {
						some = append(some, plan)
					}
				}
			}
			for i, plan := range some {
				t.Run(plan, func(t *testing.T) {
					r := *r
					if slices.Contains(exact, plan) {
						r = two
					}
					r.Plan = planFor(r.Model.Spec, plan)
					want, err := now.Sample(context.Background(), &r, nil)
					if err != nil {
						t.Fatal(err)
					}
					if rel := relative(want.Latent.Data, one.Latent.Data); rel > 1e-5 && slices.Contains(exact, plan) {
						t.Errorf("relative difference to one rank %.3g, bound 1e-5", rel)
					}
					ran := engines[i%2 : i%2+1]
					if soak {
						ran = slices.Concat(engines, []*Pool{
							newDeferredEngine(t, uint64(i+1)), newDeferredEngine(t, uint64(i+1001)),
						})
					}
					for _, e := range ran {
						for run := range 1 + (i/2+1)%2 {
							got, err := e.Sample(context.Background(), &r, nil)
							if err != nil {
								t.Fatalf("run %d: %v", run, err)
							}
							if rel := relative(got.Latent.Data, want.Latent.Data); rel != 0 {
								t.Errorf("run %d: differs by %.3g", run, rel)
							}
						}
					}
				})
			}
		})
	}
}

// TestCancelledLateRanksStayInStep checks that a canceled run does not break the group although queued calls cannot be
// taken back: the same ranks serve the next request, with the bits of a fresh engine.
func TestCancelledLateRanksStayInStep(t *testing.T) {
	g := openGolden(t, anyModel)
	for _, plan := range []string{"ulysses=2", "pipe=2,patches=3,warmup=1", "cfg=2,shard=on"} {
		e := newDeferredEngine(t, 0)
		r := parityRequest(t, g, anyModel, 1, 7, 11, 6)
		r.Plan = plan
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		team := e.whole.team
		for stop := 1; stop < 6; stop += 2 {
			ctx, cancel := context.WithCancel(context.Background())
			_, err := e.Sample(ctx, r, func(p request.Progress) error {
				if p.Step == stop {
					cancel()
				}
				return nil
			})
			cancel()
			if err == nil || scope.AsError(err).Code != fault.Cancelled {
				t.Fatalf("%s, step %d: got %v, want %s", plan, stop, err, fault.Cancelled)
			}
			if e.whole.team != team {
				t.Fatalf("%s, step %d: the ranks were dismissed", plan, stop)
			}
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatalf("%s after a cancel at step %d: %v", plan, stop, err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel != 0 {
				t.Errorf("%s after a cancel at step %d: differs by %.3g", plan, stop, rel)
			}
		}
	}
}

// TestLateBandsGiveTheSameBits checks the bands of a split picture, decoded and encoded, on ranks with late calls.
func TestLateBandsGiveTheSameBits(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestLateRanksGiveTheSameBits runs the ranks of a model so")
	}
	set, config, err := goldenweights.Set("vae-flux")
	if err != nil {
		t.Fatal(err)
	}
	const y, x = 7, 5
	run := func(e *Pool, ranks int) (picture, latent []float32) {
		t.Helper()
		err := e.Do(context.Background(), "vae", func(l *Workspace) error {
			net, err := vae.Open(l.Ops, set, config)
			if err != nil {
				return err
			}
			defer net.Close()
			if picture, err = l.Decode(net, golden.Input("split", net.Config.Latent()*y*x), 1, y, x, ranks); err != nil {
				return err
			}
			s := net.Config.Scale()
			latent, err = l.Encode(net, golden.Input("encode", y*s*x*s*3), 1, y*s, x*s, ranks)
			return err
		})
		if err != nil {
			t.Fatalf("%d ranks: %v", ranks, err)
		}
		return picture, latent
	}
	for _, ranks := range []int{1, 2, 5} {
		picture, latent := run(newEngine(t), ranks)
		for _, seed := range []uint64{0, uint64(ranks)} {
			p, l := run(newDeferredEngine(t, seed), ranks)
			if a, b := relative(p, picture), relative(l, latent); a != 0 || b != 0 {
				t.Errorf("%d ranks, order %d: the picture differs by %.3g, the latent by %.3g", ranks, seed, a, b)
			}
		}
	}
}

// TestLateAdaptersGiveTheSameBits checks that LoRA adapters are written before ranks read them.
func TestLateAdaptersGiveTheSameBits(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	stored := func(name string, shape ...int) weights.Stored {
		n := shape[0] * shape[1]
		s := weights.Stored{DType: engine.F32, Shape: shape, Data: make([]byte, 4*n)}
		engine.Narrow(s.Data, golden.Input(name, n), engine.F32)
		return s
	}
	width := tinyRequest(t, "flux", 1, 9, 8, 2).Model.Spec.Width
	for i, plan := range []string{"", "ulysses=2", "tensor=2", "pipe=2,patches=2,shard=on"} {
		run := func(e *Pool) []float32 {
			t.Helper()
			r := watchedRequest(t, &library{}, "flux", 1, 9, 8, 2, weights.LowRank{
				Name: "double_blocks.0.img_attn.qkv", Down: stored("down", 3, width), Up: stored("up", 3*width, 3), Scale: 0.05,
			})
			r.Plan = plan
			res, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatalf("%q: %v", plan, err)
			}
			return res.Latent.Data
		}
		want := run(newEngine(t))
		for _, seed := range []uint64{0, uint64(i + 1)} {
			if rel := relative(run(newDeferredEngine(t, seed)), want); rel != 0 {
				t.Errorf("%q, order %d: differs by %.3g", plan, seed, rel)
			}
		}
	}
}
