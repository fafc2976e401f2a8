package parallel

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// parityRequest returns a request with odd shapes: a latent of prime sides, a batch, CFG with different text lengths,
// a mask on one entry.
func parityRequest(t *testing.T, g goldenModel, name string, b, y, x, steps int) *request.Request {
	t.Helper()
	spec := g.model.Spec
	l := request.NewLatent(b, spec.Channels, y, x)
	if spec.Frames && y%3 == 0 {
		l.T = 3
	}
	if s := spec.Sound; s.Channels > 0 {
		l.Sound = request.Sound{C: s.Channels, Y: 2, X: 3 * s.Patch}
		if s.Width > 0 {
			l.Sound.Y, l.Sound.X = 5, s.Patch
		}
		l.Data = make([]float32, l.Len())
	}
	noise, _, err := sampling.PrepareNoise(11, b, l.Item(), nil)
	if err != nil {
		t.Fatal(err)
	}
	sigmas, err := sampling.KSamplerSigmas(g.sampling, "euler", "simple", steps, 1)
	if err != nil {
		t.Fatal(err)
	}
	entry := func(tag string, tokens int) request.Entry {
		e := request.Entry{Strength: 1}
		e.Context = dit.Array{Rows: tokens, Cols: spec.ContextDim, Data: golden.Input(name+tag, tokens*spec.ContextDim)}
		if spec.Context2Dim > 0 {
			const t5 = 256
			e.Context = dit.Array{Rows: 77, Cols: spec.ContextDim, Data: golden.Input(name+tag, 77*spec.ContextDim)}
			e.Context2 = dit.Array{Rows: t5, Cols: spec.Context2Dim, Data: golden.Input(name+tag+"t5", t5*spec.Context2Dim)}
			e.ContextLen, e.Context2Len = tokens, tokens+2
		}
		if spec.PooledDim > 0 {
			e.Pooled = golden.Input(name+tag+"pooled", spec.PooledDim)
		}
		if spec.Concat > 0 {
			e.Concat = dit.Reference{Y: y, X: x, Data: golden.Input(name+tag+"concat", spec.Concat*y*x)}
		}
		if spec.FrameRate > 0 {
			e.FrameRate = spec.FrameRate - 1
		}
		if n := spec.Connected; n > 0 && name != spec.Family { // the tiny model reads what the text encoder writes
			e.Connected = true
			e.Context.Cols, e.Context.Data = n, golden.Input(name+tag, tokens*n)
		}
		if spec.FrameRate > 0 && l.T == 3 {
			e.Frames = []float32{0, 1, .5}
		}
		return e
	}
	first := entry("a", 13)
	if spec.References && (spec.Family != "flux" || name == "kontext-a") { // of FLUX.1 only Kontext has them
		// on one side only, in two sizes, one of them odd
		for k, r := range []dit.Reference{{Y: 6, X: 9}, {Y: 5, X: 4}} {
			r.Data = golden.Input(fmt.Sprintf("%sref%d", name, k), spec.Channels*r.Y*r.X)
			first.References = append(first.References, r)
		}
		if spec.Preface {
			first.Slots = []int{4} // of the first one; the second follows the text
		}
		if c := spec.Sound.Channels; c > 0 {
			first.References = append(first.References, dit.Reference{
				Y: 2, X: 4, Condition: dit.Condition{Sound: true, Frame: 3}, Data: golden.Input(name+"refs", c*8),
			})
			first.Pictures = []dit.Range{{Start: 2, End: 6}}
		}
	}
	masked := entry("c", 5)
	if l.Sound.Len() == 0 {
		masked.Mask, masked.MaskStrength = request.Latent{B: 1, C: 1, Y: y, X: x, Data: rectangle(y, x)}, 0.8
	}
	return biased(&request.Request{
		Model: g.model, Sampling: g.sampling, Sampler: "euler", Sigmas: sigmas, Latent: l, Seed: 11,
		Noise:  request.Latent{B: b, C: spec.Channels, T: l.T, Y: y, X: x, Sound: l.Sound, Data: noise},
		Guider: request.Guider{Kind: request.GuideCFG, CFG: 3},
		Branches: []request.Branch{
			{Name: "positive", Entries: []request.Entry{first, masked}},
			{Name: "negative", Entries: []request.Entry{entry("b", 7)}},
		},
	})
}

// exactPlans returns plans whose pictures equal those of one rank.
func exactPlans() []string {
	return []string{
		"ulysses=2", "ulysses=3", "ulysses=4", "ulysses=5", "ulysses=6", "ulysses=7", "ulysses=8",
		"ring=2", "ring=3",
		"ring=5", "ring=2,ulysses=3",
		"gather=2", "gather=3", "gather=5", "gather=2,ulysses=3", "gather=3,overlap=off", "cfg=2,gather=2,data=2",
		"tensor=2,form=scatter,ulysses=2,gather=2", "pipe=2,gather=2,patches=2,warmup=99", "gather=3,speeds=60:100:25",
		"cfg=2", "cfg=3", "data=2", "tensor=2", "cfg=2,ulysses=2,data=2", "tensor=2,ulysses=2,ring=2",
		"tensor=2,form=scatter", "tensor=3,form=scatter", "tensor=2,form=scatter,ulysses=2,ring=2",
		"cfg=2,data=2,tensor=2,form=scatter",
		"cfg=2,pipe=2,tensor=2,form=scatter,patches=2,warmup=99", "pipe=2,tensor=3,form=scatter,patches=5,warmup=99",
		"pipe=2,warmup=99", "pipe=2,patches=4,warmup=99", "pipe=2,ulysses=3,patches=3,warmup=99",
		"pipe=2,ring=2,ulysses=2,patches=2,warmup=99",
		"cfg=2,pipe=2,tensor=2,patches=2,warmup=99", "pipe=2,patches=1,warmup=0",
		"pipe=2,patches=3,warmup=99,sync=spread", "pipe=2,ulysses=3,patches=2,warmup=99,sync=spread",
		"pipe=2,ring=2,ulysses=2,patches=2,warmup=99,sync=spread",
		"cfg=2,pipe=2,tensor=2,patches=2,warmup=99,sync=spread", "pipe=3,patches=4,warmup=99,sync=spread",
		"pipe=2,tensor=2,form=scatter,patches=2,warmup=99,sync=spread", "data=2,pipe=2,patches=1,sync=spread",
		"ulysses=3,speeds=60:100:25", "ring=2,ulysses=2,speeds=100:70:40:9",
		"data=2,tensor=2,ring=2,form=scatter,speeds=100:90:30:30:50:50:20:25",
		"pipe=2,ulysses=2,patches=3,warmup=99,speeds=100:35:50:40",
		"pipe=2,ring=2,patches=2,warmup=99,sync=spread,speeds=100:60:30:10",
	}
}

// planFor fits a plan to the stages and heads of a small model.
func planFor(spec *dit.Spec, text string) string {
	if spec.Context2Dim > 0 { // six blocks fold into three stages at most
		text = strings.Replace(text, "pipe=2,warmup", "pipe=3,warmup", 1)
	}
	if plan.MaxStages(spec) < 3 {
		text = strings.Replace(text, "pipe=3", "pipe=2", 1)
	}
	if spec.Groups() < 3 {
		text = strings.Replace(text, "tensor=3", "tensor=2", 1)
	}
	if len(spec.Blocks) < 4 {
		text = strings.NewReplacer("stream=3", "stream=1", "stream=4", "stream=2").Replace(text)
	}
	return text
}

// TestExactPlansEqualOneRank checks that every exact plan gives the answer of one rank, for any degree and odd shapes.
// TestLateRanksGiveTheSameBits checks it on more networks.
func TestExactPlansEqualOneRank(t *testing.T) {
	all, n := []string{}, 13
	for i, names := range recordedNetworks(t) {
		switch {
		case !testing.Short():
			all = append(all, names...)
		case i%3 == 1: // few, and most plans on one of them
			all = append(all, names[len(names)-1])
		}
	}
	if testing.Short() {
		n = 2
	}
	e := newEngine(t)
	for k, name := range all {
		c := sized(t, name, k, oddSides()...)
		g := openGolden(t, c.name)
		r := parityRequest(t, g, c.name, 2, c.y, c.x, 2)
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, plan := range somePlans(exactPlans(), k, n) {
			plan = planFor(g.model.Spec, plan)
			t.Run(fmt.Sprintf("%s/%s", c.name, plan), func(t *testing.T) {
				r := *r
				r.Plan = plan
				got, err := e.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-5 {
					t.Errorf("relative difference to one rank %.3g, bound 1e-5", rel)
				}
				if i%3 > 0 && !soak {
					return // a second run on every third plan only
				}
				again, err := e.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(again.Latent.Data, got.Latent.Data); rel != 0 {
					t.Errorf("second run differs by %.3g: runs must be bit-identical", rel)
				}
			})
		}
	}
}

// rankOf returns the rank of a member that runs in this process.
func rankOf(m process.Member) *rank.Rank { return m.(*rank.Port).Rank }
