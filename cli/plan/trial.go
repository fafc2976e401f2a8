package plan

import (
	"cmp"
	"fmt"
	"math"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/engine"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/published"
	"patchbay/models/sampling"
	"patchbay/models/source"
	"patchbay/parallel/request"
)

// Trial is a run of a model on noise with made-up conditioning, for measuring.
type Trial struct {
	Model   string // file; empty: the demo's
	Size    string // width x height in pixels
	Compute string // f32 or bf16
	Plan    string
	Steps   int
	Text    int // tokens
	Entries int // 2 with cfg, 1 without
	// Random means that Model names a release, or a family, with random weights (published.Random). Text and Entries
	// of 0 are then replaced by the release's.
	Random bool
}

// Open reads the header of the model and returns the request.
func (f *Trial) Open() (*request.Request, error) {
	if f.Random {
		return f.random()
	}
	f.Text, f.Entries = cmp.Or(f.Text, 32), cmp.Or(f.Entries, 2)
	if f.Model == "" {
		var err error
		if f.Model, err = workflow.Demo("diffusion_models", "demo_flux.safetensors"); err != nil {
			return nil, err
		}
	}
	stat, file, err := source.Stat(f.Model, true)
	if err != nil {
		return nil, err
	}
	defer console.CloseQuietly(file)
	d, err := models.OpenDiffusion(file.Set(), file.Metadata())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Model, err)
	}
	r, err := f.request(d)
	if err != nil {
		return nil, console.BadInput(err)
	}
	w := source.Weights{Model: source.Model{File: stat}, Loader: &source.Loader{}}
	r.Model = request.Model{Key: w.Key(), Spec: &d.Spec, Weights: w}
	return r, nil
}

// Wave returns n values of a sine, as filler for data whose values do not matter.
func Wave(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.Sin(float64(i)))
	}
	return v
}

// random returns the request for a release with random weights.
func (f *Trial) random() (*request.Request, error) {
	d, release, err := published.Random(f.Model)
	if err != nil {
		return nil, console.BadInput(fmt.Errorf("--random-weights: %w", err))
	}
	f.Text, f.Entries = cmp.Or(f.Text, release.Text), cmp.Or(f.Entries, release.Entries)
	r, err := f.request(d)
	if err != nil {
		return nil, console.BadInput(err)
	}
	r.Model = request.Model{
		Key: "random " + f.Model, Spec: &d.Spec, Weights: request.LoadFunc(d.Load), WeightBytes: 2 * d.Spec.Params,
	}
	return r, nil
}

// request returns a run on noise; the caller must set its Model.
func (f *Trial) request(d *family.Diffusion) (*request.Request, error) {
	w, h, err := settings.Pixels(f.Size, 16, 4096)
	if err != nil {
		return nil, err
	}
	if f.Steps < 1 || f.Steps > 1000 || f.Text < 1 || f.Text > 4096 || f.Entries < 1 || f.Entries > 2 {
		return nil, fmt.Errorf("want --steps 1 to 1000, --text 1 to 4096, --entries 1 or 2")
	}
	compute, ok := map[string]engine.DType{"f32": engine.F32, "bf16": engine.BF16}[f.Compute]
	if !ok {
		return nil, fmt.Errorf("--compute %s: want f32 or bf16", f.Compute)
	}
	line, err := d.Sampling.Build()
	if err != nil {
		return nil, err
	}
	sigmas, err := sampling.KSamplerSigmas(line, "euler", "simple", f.Steps, 1)
	if err != nil {
		return nil, err
	}
	spec := d.Spec
	entry := request.Entry{Strength: 1}
	entry.Context = dit.Array{Rows: f.Text, Cols: spec.ContextDim, Data: Wave(f.Text * spec.ContextDim)}
	entry.Pooled = Wave(spec.PooledDim)
	if spec.Context2Dim > 0 { // HunyuanDiT has fixed lengths of 77 and 256 tokens
		entry.Context = dit.Array{Rows: 77, Cols: spec.ContextDim, Data: Wave(77 * spec.ContextDim)}
		entry.Context2 = dit.Array{Rows: 256, Cols: spec.Context2Dim, Data: Wave(256 * spec.Context2Dim)}
	}
	scale := d.Latent.Pixels()
	latent := request.NewLatent(1, spec.Channels, h/scale, w/scale)
	noise := request.NewLatent(1, spec.Channels, h/scale, w/scale)
	noise.Data = Wave(noise.Len())
	r := &request.Request{
		Sampling: line, Sampler: "euler", Sigmas: sigmas, Latent: latent, Noise: noise, Plan: f.Plan, Compute: compute,
		Branches: []request.Branch{{Name: "positive", Entries: []request.Entry{entry}}},
	}
	if f.Entries == 2 {
		r.Guider = request.Guider{Kind: request.GuideCFG, CFG: 4}
		r.Branches = append(r.Branches, request.Branch{Name: "negative", Entries: []request.Entry{entry}})
	}
	return r, nil
}
