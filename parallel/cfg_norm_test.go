package parallel

import (
	"context"
	"math"
	"testing"

	"patchbay/parallel/request"
)

// TestCFGNormOfDualGuidance compares CFGNorm behind DualCFGGuider, in one step, with ComfyUI's formulas
// (Guider_DualCFG.predict_noise, nodes_cfg.py) on the predictions of the three texts.
func TestCFGNormOfDualGuidance(t *testing.T) {
	e, g := newEngine(t), openGolden(t, anyModel)
	r := parityRequest(t, g, anyModel, 2, 8, 10, 4)
	r.Sigmas = []float32{r.Sigmas[1], 0}
	first, second := r.Branches[0].Entries[0], r.Branches[0].Entries[1]
	second.Mask = request.Latent{}
	second.Strength = 1
	texts := []request.Branch{
		{Name: "cond1", Entries: []request.Entry{first}},
		{Name: "cond2", Entries: []request.Entry{second}},
		{Name: "negative", Entries: r.Branches[1].Entries[:1]},
	}
	sample := func(guider request.Guider, branches ...request.Branch) []float32 {
		t.Helper()
		r := *r
		r.Guider, r.Branches = guider, branches
		res, err := e.Sample(context.Background(), &r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return res.Latent.Data
	}
	basic := request.Guider{Kind: request.GuideBasic}
	c, m, n := sample(basic, texts[0]), sample(basic, texts[1]), sample(basic, texts[2])
	const strength, plane = float32(0.8), 80
	normed := func(x, positive []float32) []float32 {
		out := make([]float32, len(x))
		for i := range x {
			size := func(v []float32) (sum float64) {
				channels := r.Latent.C
				item := i / (channels * plane)
				for ch := range channels {
					at := float64(v[(item*channels+ch)*plane+i%plane])
					sum += at * at
				}
				return math.Sqrt(sum)
			}
			out[i] = x[i] * float32(min(size(positive)/(size(x)+1e-8), 1)) * strength
		}
		return out
	}
	guided := func(u, p []float32, cfg float32) []float32 {
		out := make([]float32, len(u))
		for i := range out {
			out[i] = u[i] + (p[i]-u[i])*cfg
		}
		return out
	}
	dual := request.Guider{Kind: request.GuideDual, CFG: 3, CFG2: 2, Norm: new(float32)}
	*dual.Norm = strength
	regular := normed(guided(n, m, 2), m)
	for i := range regular {
		regular[i] += (c[i] - m[i]) * 3
	}
	nested := dual
	nested.Nested = true
	for _, run := range []struct {
		name      string
		got, want []float32
	}{
		{"regular", sample(dual, texts...), regular},
		{"nested", sample(nested, texts...), guided(n, normed(guided(m, c, 3), c), 2)},
		{
			"cfg", sample(request.Guider{Kind: request.GuideCFG, CFG: 3, Norm: dual.Norm}, texts[0], texts[2]),
			normed(guided(n, c, 3), c),
		},
		{"basic", sample(request.Guider{Kind: request.GuideBasic, Norm: dual.Norm}, texts[0]), normed(c, c)},
	} {
		if rel := relative(run.got, run.want); !(rel <= 1e-5) {
			t.Errorf("%s: relative error %.3g, bound 1e-5", run.name, rel)
		}
	}
}
