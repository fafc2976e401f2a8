package serve_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/golden"
)

// TestEveryFieldOfSample compares runs of the demo model that differ in one field with what that field must do.
func TestEveryFieldOfSample(t *testing.T) {
	c := ipctest.DialRig(t, realRig(t, "../../examples/demo"))
	ctx := wiretest.Context(t)
	const n = 16 * 8 * 8
	base := func(change ...func(*message.SampleRequest)) *message.SampleRequest {
		q := demoSample()
		q.Sigmas = f32([]float32{0.9, 0.6, 0.3, 0}, 4)
		q.Noise = f32(golden.Fill("noise", n, 1.7, 0), 1, 16, 8, 8)
		q.Seed = 5
		for _, f := range change {
			f(q)
		}
		return q
	}
	run := func(name string, q *message.SampleRequest) (*message.SampleReply, []float32) {
		t.Helper()
		done, err := ipctest.Sample(ctx, c, q, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return done, floats(t, done.X)
	}
	full := func(v float32, shape ...int) *wire.Tensor {
		size := 1
		for _, d := range shape {
			size *= d
		}
		data := make([]float32, size)
		for i := range data {
			data[i] = v
		}
		return f32(data, shape...)
	}
	number := func(v float64) *float64 { return &v }
	sampler := func(name string, options map[string]any) func(*message.SampleRequest) {
		return func(q *message.SampleRequest) { q.Sampler = message.SamplerRef{Name: name, Options: options} }
	}
	positive := func(f func(*message.CondRef)) func(*message.SampleRequest) {
		return func(q *message.SampleRequest) { f(&q.Conds.Positive[0]) }
	}
	reusing := func(threshold float64) func(*message.SampleRequest) {
		return func(q *message.SampleRequest) {
			q.Sigmas = f32([]float32{0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0}, 8)
			q.Cache = &message.CacheRef{Rule: "lazy", Threshold: &threshold}
		}
	}
	uncached := func(q *message.SampleRequest) { q.Cache = nil }
	churn := sampler("euler", map[string]any{"s_churn": 1.0}) // its noise is drawn after that of the start
	first, want := run("base", base())
	if first.Evals != 3 {
		t.Errorf("%d evaluations, want 3", first.Evals)
	}
	dual := func(cfg, cfg2 float64, nested bool) func(q *message.SampleRequest) {
		return func(q *message.SampleRequest) {
			q.CFG, q.Dual = number(cfg), &message.DualRef{Middle: *q.Conds.Negative, CFG2: cfg2, Nested: nested}
		}
	}
	scale := func(cfg float64) func(q *message.SampleRequest) {
		return func(q *message.SampleRequest) { q.CFG = number(cfg) }
	}
	half := full(1, 1, 1, 8, 8)
	copy(half.Data[:len(half.Data)/2], make([]byte, len(half.Data)/2))
	off := false
	latent := floats(t, base().Latent)
	for name, row := range map[string]struct {
		q      *message.SampleRequest
		other  *message.SampleRequest // whose result it equals; nil: that of base
		differ bool
	}{
		"the same":    {base(), nil, false},
		"seed, euler": {base(func(q *message.SampleRequest) { q.Seed = 6 }), nil, false},
		"seed": {
			base(sampler("euler_ancestral", nil), func(q *message.SampleRequest) { q.Seed = 6 }),
			base(sampler("euler_ancestral", nil)), true,
		},
		"options": {base(sampler("euler_ancestral", map[string]any{"eta": 0.0})), nil, false},
		"noise":   {base(func(q *message.SampleRequest) { q.Noise = full(1, 1, 16, 8, 8) }), nil, true},
		"no noise": {
			base(func(q *message.SampleRequest) { q.Noise = nil }),
			base(func(q *message.SampleRequest) { q.Noise = full(0, 1, 16, 8, 8) }), false,
		},
		"noise_draws": {base(churn, func(q *message.SampleRequest) { q.NoiseDraws = []int{n, n} }), base(churn), true},
		"sigmas":      {base(func(q *message.SampleRequest) { q.Sigmas = f32([]float32{0.9, 0.5, 0}, 3) }), nil, true},
		"sampling.shift": {base(func(q *message.SampleRequest) {
			q.Sampling = &message.SamplingRef{Bases: []string{"ModelSamplingDiscreteFlow", "CONST"}, Shift: number(3)}
		}), nil, false},
		"sampling.multiplier": {base(func(q *message.SampleRequest) {
			q.Sampling = &message.SamplingRef{Bases: []string{"ModelSamplingDiscreteFlow", "CONST"}, Multiplier: number(500)}
		}), nil, true},
		"cfg": {base(func(q *message.SampleRequest) { q.CFG = number(4) }), nil, true},
		"cfg_norm": {
			base(func(q *message.SampleRequest) { q.CFG, q.Norm = number(4), number(1) }),
			base(func(q *message.SampleRequest) { q.CFG = number(4) }), true,
		},
		"cfg 1": {
			base(func(q *message.SampleRequest) { q.CFG = number(1) }),
			base(func(q *message.SampleRequest) { q.CFG, q.Conds.Negative = nil, nil }), false,
		},
		"cfg1_shortcut": {
			base(func(q *message.SampleRequest) { q.CFG, q.CFG1 = number(1), &off }),
			base(func(q *message.SampleRequest) { q.CFG = number(1) }), false,
		},
		// n + (m - n) cfg2 + (c - m) cfg, nested n + cfg2 (m + (c - m) cfg - n): with m = n or m = c that is one scale
		"dual, middle as negative": {base(dual(3, 7, false)), base(scale(3)), false},
		"dual, middle as positive": {base(dual(9, 3, false), func(q *message.SampleRequest) {
			q.Dual.Middle = q.Conds.Positive
		}), base(scale(3)), false},
		"dual nested, middle as negative": {base(dual(2, 1.5, true)), base(scale(3)), false},
		"dual.middle": {base(dual(3, 7, false), func(q *message.SampleRequest) {
			q.Dual.Middle = q.Conds.Positive
		}), base(scale(3)), true},
		"mask of ones": {base(func(q *message.SampleRequest) { q.Mask = full(1, 1, 1, 8, 8) }), nil, false},
		"mask":         {base(func(q *message.SampleRequest) { q.Mask = half }), nil, true},
		"mask_noise_from_seed": {
			base(func(q *message.SampleRequest) { q.Mask, q.Sampler.MaskNoiseFromSeed = half, true }),
			base(sampler("ddim", nil), func(q *message.SampleRequest) { q.Mask = half }), false,
		},
		"mask_noise and seed": {
			base(func(q *message.SampleRequest) { q.Mask, q.Sampler.MaskNoiseFromSeed, q.Seed = half, true, 6 }),
			base(func(q *message.SampleRequest) { q.Mask, q.Sampler.MaskNoiseFromSeed = half, true }), true,
		},
		"a range of all": {base(positive(func(e *message.CondRef) {
			e.TimestepStart, e.TimestepEnd = number(1),
				number(0)
		})), nil, false},
		"a range of some": {base(positive(func(e *message.CondRef) { e.TimestepEnd = number(0.5) })), nil, true},
		// the mean of one entry is that entry
		"strength of one": {base(positive(func(e *message.CondRef) { e.Strength = number(0.3) })), nil, false},
		"strength of two": {
			base(func(q *message.SampleRequest) {
				q.Conds.Positive = append(q.Conds.Positive, (*q.Conds.Negative)[0])
				q.Conds.Positive[1].Strength = number(0)
			}), nil, false,
		},
		"two entries": {base(func(q *message.SampleRequest) {
			q.Conds.Positive = append(q.Conds.Positive,
				(*q.Conds.Negative)[0])
		}), nil, true},
		"the whole area": {base(positive(func(e *message.CondRef) { e.Area = []int{8, 8, 0, 0} })), nil, false},
		"area":           {base(positive(func(e *message.CondRef) { e.Area = []int{4, 8, 0, 0} })), nil, true},
		"a mask of ones": {base(positive(func(e *message.CondRef) { e.Mask = full(1, 1, 8, 8) })), nil, false},
		"a masked entry": {base(positive(func(e *message.CondRef) { e.Mask = f32(floats(t, half), 1, 8, 8) }),
			func(q *message.SampleRequest) { q.Conds.Positive = append(q.Conds.Positive, (*q.Conds.Negative)[0]) }), nil, true},
		"y":    {base(positive(func(e *message.CondRef) { e.ModelConds["y"] = full(0, 1, 128) })), nil, true},
		"plan": {base(func(q *message.SampleRequest) { q.Plan = "cfg=2,ulysses=2" }), nil, false},
		"f16 is widened": {
			base(func(q *message.SampleRequest) { q.Latent = half16(t, q.Latent) }),
			base(func(q *message.SampleRequest) { q.Latent = widened(t, half16(t, q.Latent)) }), false,
		},
		"cache":              {base(reusing(3)), base(reusing(3), uncached), true},
		"cache, threshold 0": {base(reusing(0)), base(reusing(0), uncached), false},
		"cache.rule": {
			base(reusing(3), func(q *message.SampleRequest) { q.Cache.Rule = "easy" }), base(reusing(3)), true,
		},
		"cache.start": {
			base(reusing(3), func(q *message.SampleRequest) { q.Cache.Start = number(0.6) }), base(reusing(3)), true,
		},
		"cache.end": {
			base(reusing(3), func(q *message.SampleRequest) { q.Cache.End = number(0) }), base(reusing(3), uncached), false,
		},
		"an empty branch": {base(func(q *message.SampleRequest) { q.Conds.Negative = &[]message.CondRef{} }), nil, true},
	} {
		done, got := run(name, row.q)
		ref := want
		if row.other != nil {
			_, ref = run(name, row.other)
		}
		rel := apart(got, ref)
		switch {
		case row.differ && rel < 1e-3:
			t.Errorf("%s: relative difference %.2g, it must change the result", name, rel)
		case !row.differ && rel > 1e-4:
			t.Errorf("%s: relative difference %.2g, bound 1e-4", name, rel)
		}
		if name == "plan" && !strings.Contains(done.Metrics["plan"].(string), "ulysses=2") {
			t.Errorf("plan: it ran as %v", done.Metrics["plan"])
		}
	}
	_, masked := run("mask of zeros", base(func(q *message.SampleRequest) { q.Mask = full(0, 1, 1, 8, 8) }))
	if rel := apart(masked, latent); rel > 1e-5 {
		t.Errorf("a mask of zeros: the latent changed by %.2g", rel)
	}
	var pictures int
	done, err := ipctest.Sample(ctx, c, base(func(q *message.SampleRequest) { q.Preview, q.WantX0 = "jpeg", true }),
		func(p *message.SampleReply) {
			if bytes.HasPrefix(p.JPEG, []byte("\xff\xd8")) && p.X0 == nil && p.Sigma > 0 && !math.IsNaN(p.Sigma) {
				pictures++
			}
		})
	if err != nil || pictures < 2 || done.X0 == nil { // the first and the last at least
		t.Errorf("jpeg: %d pictures, x0 %v, %v", pictures, done.X0 != nil, err)
	}
}

// half16 narrows to bf16, by truncation.
func half16(t *testing.T, x *wire.Tensor) *wire.Tensor {
	t.Helper()
	out := &wire.Tensor{Tensor: array.Tensor{DType: "bf16", Shape: x.Shape}}
	for i := 0; i < len(x.Data); i += 4 {
		out.Data = append(out.Data, x.Data[i+2], x.Data[i+3])
	}
	return out
}

func widened(t *testing.T, x *wire.Tensor) *wire.Tensor {
	t.Helper()
	return f32(floats(t, x), x.Shape...)
}
