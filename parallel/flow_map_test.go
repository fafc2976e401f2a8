package parallel

import (
	"context"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// flowMapEntry is an entry of flux3/e2e.json.
type flowMapEntry struct {
	Context    string
	Shape      []int
	Zeroed     bool
	References []struct {
		Input string
		Shape []int
	} `json:"reference_latents"`
}

func (e flowMapEntry) lower() request.Entry {
	input := func(name string, n int) []float32 { return golden.Input(strings.TrimPrefix(name, "input:"), n) }
	out := request.Entry{Strength: 1}
	rows, cols := e.Shape[1], e.Shape[2]
	out.Context = dit.Array{Rows: rows, Cols: cols, Data: input(e.Context, rows*cols)}
	if e.Zeroed {
		clear(out.Context.Data)
	}
	for _, r := range e.References {
		y, x := r.Shape[2], r.Shape[3]
		out.References = append(out.References, dit.Reference{Y: y, X: x, Data: input(r.Input, r.Shape[1]*y*x)})
	}
	return out
}

// TestFlowMapsAndTheirBaseMatchComfyUI checks recorded runs of FLUX.3: of the base model and of a flow map, which also
// reads where each step leads to. Every run is repeated with its sequence split and in a pipeline.
func TestFlowMapsAndTheirBaseMatchComfyUI(t *testing.T) {
	var runs map[string]struct {
		Model, Sampler     string
		Width, Height      int
		Sigmas             []float32
		CFG                float32
		Seed               uint64
		Positive, Negative flowMapEntry
	}
	if err := golden.JSON("flux3/e2e.json", &runs); err != nil {
		t.Fatal(err)
	}
	f, err := golden.Open("flux3/e2e.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if len(runs) < 6 {
		t.Fatalf("%d runs are recorded, want at least 6", len(runs))
	}
	e := newEngine(t)
	for name, run := range runs {
		g := openGolden(t, run.Model)
		c, y, x := g.model.Spec.Channels, run.Height/16, run.Width/16
		noise, _, err := sampling.PrepareNoise(run.Seed, 1, c*y*x, nil)
		if err != nil {
			t.Fatal(err)
		}
		recorded, ok := f.Entry(name)
		if !ok {
			t.Fatalf("no result of %s is recorded", name)
		}
		want, err := recorded.F32()
		if err != nil {
			t.Fatal(err)
		}
		for _, plan := range []string{"", "ulysses=2,ring=2", "cfg=2,pipe=2,tensor=2,patches=2,warmup=99"} {
			t.Run(name+"/"+plan, func(t *testing.T) {
				r := &request.Request{
					Model: g.model, Sampling: g.sampling, Sampler: run.Sampler, Latent: request.NewLatent(1, c, y, x),
					Seed: run.Seed, Noise: request.Latent{B: 1, C: c, Y: y, X: x, Data: noise}, Sigmas: run.Sigmas,
					Guider: request.Guider{Kind: request.GuideCFG, CFG: run.CFG}, Plan: plan,
					Branches: []request.Branch{
						{Name: "positive", Entries: []request.Entry{run.Positive.lower()}},
						{Name: "negative", Entries: []request.Entry{run.Negative.lower()}},
					},
				}
				res, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				bound := 1e-4
				if run.Sampler == "er_sde" {
					bound = 2e-4
				}
				rel := relative(res.Latent.Data, want)
				if !(rel <= bound) {
					t.Errorf("relative error %.3g, bound %.0e", rel, bound)
				}
				t.Logf("relative error %.2g", rel)
			})
		}
	}
}
