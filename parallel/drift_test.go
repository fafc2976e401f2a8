package parallel

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/parallel/request"
)

var writeDrift = flag.Bool("update-drift", false, "measure the drift table and write it to docs/parallel.md")

const (
	driftPage  = "../docs/parallel.md"
	driftBegin = "<!-- drift: go test ./parallel -run Drift -args -update-drift -->\n"
	driftEnd   = "<!-- /drift -->\n"
)

// driftBench makes pictures with the trained demo model.
type driftBench struct {
	t       testing.TB
	e       *Pool
	model   request.Model
	line    *sampling.ModelSampling
	net     *vae.VAE
	format  latent.Format
	prompts []request.Entry
	empty   request.Entry
	one     [][]float32    // pictures of one rank
	seeds   uint64         // pictures of each prompt
	steps   int            // of the next pictures
	cache   *request.Cache // of the next pictures
	sampler string
	compute engine.DType
	stats   []request.Stats // of the last pictures
}

func newDriftBench(t testing.TB) *driftBench {
	t.Helper()
	const demo = "../examples/demo"
	b := &driftBench{t: t, seeds: 3, steps: 12, sampler: "euler"}
	var err error
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b.e, err = NewPool(Config{NewOps: testOps})
	check(err)
	t.Cleanup(b.e.Close)
	file, err := weights.Open(filepath.Join(demo, "diffusion_models", "demo_flux.safetensors"), engine.F32)
	check(err)
	t.Cleanup(func() { _ = file.Close() })
	d, err := models.OpenDiffusion(file.Set(), file.Metadata())
	check(err)
	spec := d.Spec
	b.model = request.Model{
		Key: "demo", Spec: &spec,
		Weights: request.LoadFunc(d.Load),
	}
	b.line, err = d.Sampling.Build()
	check(err)
	ae, err := safetensors.Open(filepath.Join(demo, "vae", "demo_ae.safetensors"))
	check(err)
	defer func() { _ = ae.Close() }()
	config := []byte(ae.Metadata()["config"])
	ops, err := testOps(0, 1)
	check(err)
	b.net, err = vae.Open(ops, weights.FromFile(ae), config)
	check(err)
	t.Cleanup(b.net.Close)
	b.format, err = latent.FLUX().WithConfig(config)
	check(err)
	for i := range 3 { // two prompts and the empty one, as encoded by torch
		f, err := safetensors.Open(filepath.Join(demo, "reference", fmt.Sprintf("prompt%d.safetensors", i)))
		check(err)
		read := func(name string) []float32 {
			entry, ok := f.Entry(name)
			if !ok {
				t.Fatalf("prompt%d has no %s", i, name)
			}
			v, err := entry.F32()
			check(err)
			return v
		}
		text := read("t5_output")
		e := request.Entry{Strength: 1}
		e.Context = dit.Array{Rows: len(text) / spec.ContextDim, Cols: spec.ContextDim, Data: text}
		e.Pooled = read("clip_pooled")
		check(f.Close())
		b.prompts, b.empty = append(b.prompts, e), e
	}
	b.prompts = b.prompts[:2]
	return b
}

// whole returns the pictures of one rank with the settings at its first call.
func (b *driftBench) whole() [][]float32 {
	b.t.Helper()
	if b.one == nil {
		b.one = b.pictures("")
	}
	return b.one
}

// drawn caches the pictures made without a Cache, by plan and settings: several tests compare with them.
var drawn sync.Map

// pictures returns the pictures of all prompts and seeds with a plan, made as in the demo: 128 x 128 px, cfg 3.5, by
// default euler with 12 steps. Values are in 0..1.
func (b *driftBench) pictures(plan string) [][]float32 {
	b.t.Helper()
	type result struct {
		pictures [][]float32
		stats    []request.Stats
	}
	key := fmt.Sprint(plan, b.seeds, b.steps, b.sampler, b.compute)
	if made, ok := drawn.Load(key); ok && b.cache == nil {
		b.stats = made.(result).stats
		return made.(result).pictures
	}
	out := b.draw(plan)
	if b.cache == nil {
		drawn.Store(key, result{out, b.stats})
	}
	return out
}

func (b *driftBench) draw(plan string) [][]float32 {
	b.t.Helper()
	sigmas, err := sampling.KSamplerSigmas(b.line, b.sampler, "simple", b.steps, 1)
	if err != nil {
		b.t.Fatal(err)
	}
	var out [][]float32
	b.stats = nil
	for _, prompt := range b.prompts {
		for seed := range b.seeds {
			l := request.NewLatent(1, b.model.Spec.Channels, 16, 16)
			noise, _, err := sampling.PrepareNoise(seed, 1, l.Len(), nil)
			if err != nil {
				b.t.Fatal(err)
			}
			r := &request.Request{
				Model: b.model, Sampling: b.line, Sampler: b.sampler, Sigmas: sigmas, Latent: l, Noise: l,
				Plan: plan, Cache: b.cache, Compute: b.compute,
				Guider: request.Guider{Kind: request.GuideCFG, CFG: 3.5},
				Branches: []request.Branch{
					{Name: "positive", Entries: []request.Entry{prompt}},
					{Name: "negative", Entries: []request.Entry{b.empty}},
				},
			}
			r.Noise.Data = noise
			res, err := b.e.Sample(context.Background(), r, nil)
			if err != nil {
				b.t.Fatal(err)
			}
			b.stats = append(b.stats, res.Stats)
			b.format.FromModel(res.Latent.Data, res.Latent.Y*res.Latent.X)
			var picture []float32
			err = b.e.Do(context.Background(), "decode", func(l *Workspace) error {
				picture, err = l.Decode(b.net, res.Latent.Data, 1, 16, 16, 1)
				return err
			})
			if err != nil {
				b.t.Fatal(err)
			}
			for i, v := range picture {
				picture[i] = min(max(v, 0), 1)
			}
			out = append(out, picture)
		}
	}
	return out
}

// drift returns the mean PSNR in dB of a plan's pictures against those of one rank; the peak is 1.
func (b *driftBench) drift(plan string) float64 {
	b.t.Helper()
	return meanPSNR(b.pictures(plan), b.whole())
}

// driftRows returns the rows of the table: the number of stages measured and the number of patches shown. The columns
// are warm-ups 1 to 4.
func driftRows() [][2]int { return [][2]int{{2, 2}, {3, 3}, {2, 4}, {3, 6}, {2, 8}} }

func driftPlan(stages, patches, warmup int) string {
	return fmt.Sprintf("pipe=%d,patches=%d,warmup=%d", stages, patches, warmup)
}

// TestDriftOfTheDemo measures how far pictures of stale pipelines are from those of one rank, on some cells of the
// table in docs/parallel.md, which holds for any number of stages: none may be more than 1 dB better or worse than the
// table says.
//
// With -update-drift it measures all cells and writes the table.
func TestDriftOfTheDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("long: it measures a table of docs/parallel.md on trained weights")
	}
	page, err := os.ReadFile(driftPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), driftBegin)
	table, after, ok2 := strings.Cut(rest, driftEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no drift table between %q and %q", driftPage, driftBegin, driftEnd)
	}
	b := newDriftBench(t)
	if *writeDrift {
		table = "| patches | warmup=1 | warmup=2 | warmup=3 | warmup=4 |\n|---|---|---|---|---|\n"
		for _, r := range driftRows() {
			table += fmt.Sprintf("| %d |", r[1])
			for w := 1; w <= 4; w++ {
				table += fmt.Sprintf(" %.1f |", b.drift(driftPlan(r[0], r[1], w)))
			}
			table += "\n"
		}
		if err := os.WriteFile(driftPage, []byte(before+driftBegin+table+driftEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	cells := map[[2]int]float64{} // by patches and warm-up
	for line := range strings.SplitSeq(table, "\n") {
		var patches int
		var db [4]float64
		if n, _ := fmt.Sscanf(line, "| %d | %g | %g | %g | %g |", &patches, &db[0], &db[1], &db[2], &db[3]); n == 5 {
			for w, v := range db {
				cells[[2]int{patches, w + 1}] = v
			}
		}
	}
	if len(cells) != 4*len(driftRows()) {
		t.Fatalf("the table has %d cells, want %d", len(cells), 4*len(driftRows()))
	}
	tested := [][3]int{{2, 4, 1}, {2, 4, 3}, {4, 4, 1}, {4, 8, 2}}
	if !soak {
		tested = tested[:1]
	}
	for _, c := range tested {
		plan := driftPlan(c[0], c[1], c[2])
		got, want := b.drift(plan), cells[[2]int{c[1], c[2]}]
		t.Logf("%s: %.2f dB, table %.1f dB", plan, got, want)
		if !near(got, want, 1) {
			t.Errorf("%s: PSNR to one rank %.2f dB, the table says %.1f: better or worse by more than 1 dB", plan, got, want)
		}
	}
	if !soak { // TestExactPlansEqualOneRank checks it on small networks
		return
	}
	if exact := b.drift("pipe=2,patches=4,warmup=99"); !(exact >= 90) {
		t.Errorf("an exact plan has PSNR %.1f dB to one rank, want 90", exact)
	}
}
