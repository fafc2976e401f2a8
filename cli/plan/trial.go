package plan

import (
	"cmp"
	"fmt"
	"math"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/node/files"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// Trial is a run of a model on noise with made-up conditioning, for measuring.
type Trial struct {
	Model   string // file; empty: the demo's
	Size    string // width x height in pixels
	Compute string // value.Compute
	Plan    string
	Steps   int
	Text    int // tokens
	Entries int // 2 with cfg, 1 without
	// Random means that Model names a release, or a family, with random weights (published.Random). Text and Entries
	// of 0 are then replaced by the release's.
	Random bool
}

// Open reads the header of the model as a loader node of serve does, and returns the request. device is the name of
// what it will run on (engine.Ops.Name), on which the type of activations may depend.
func (f *Trial) Open(device string) (*request.Request, error) {
	compute, err := value.ParseCompute(f.Compute)
	if err != nil {
		return nil, console.BadInput(fmt.Errorf("--compute %w", err))
	}
	m, err := f.model()
	if err != nil {
		return nil, err
	}
	r, err := f.request(m)
	if err != nil {
		return nil, console.BadInput(err)
	}
	r.Model, r.Compute = m.Request(), compute.Of(device, m)
	return r, nil
}

// model describes the model and fills in the defaults that depend on it.
func (f *Trial) model() (m *value.Model, err error) {
	if f.Random {
		m, release, err := value.RandomModel(f.Model)
		if err != nil {
			return nil, console.BadInput(fmt.Errorf("--random-weights: %w", err))
		}
		f.Text, f.Entries = cmp.Or(f.Text, release.Text), cmp.Or(f.Entries, release.Entries)
		return m, nil
	}
	f.Text, f.Entries = cmp.Or(f.Text, 32), cmp.Or(f.Entries, 2)
	if f.Model == "" {
		if f.Model, err = workflow.Demo("diffusion_models", "demo_flux.safetensors"); err != nil {
			return nil, err
		}
	}
	err = files.ReadHeader(files.KindDiffusion, f.Model, false, func(h files.Header) error {
		m, err = value.OpenModel(h)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Model, err)
	}
	return m, nil
}

// Wave returns n values of a sine, as filler for data whose values do not matter.
func Wave(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.Sin(float64(i)))
	}
	return v
}

// request returns a run on noise; the caller must set its Model and Compute.
func (f *Trial) request(m *value.Model) (*request.Request, error) {
	w, h, err := settings.Pixels(f.Size, 16, 4096)
	if err != nil {
		return nil, err
	}
	if f.Steps < 1 || f.Steps > 1000 || f.Text < 1 || f.Text > 4096 || f.Entries < 1 || f.Entries > 2 {
		return nil, fmt.Errorf("want --steps 1 to 1000, --text 1 to 4096, --entries 1 or 2")
	}
	sigmas, err := sampling.KSamplerSigmas(m.Sampling, "euler", "simple", f.Steps, 1)
	if err != nil {
		return nil, err
	}
	spec := m.Spec
	entry := request.Entry{Strength: 1}
	entry.Context = dit.Array{Rows: f.Text, Cols: spec.ContextDim, Data: Wave(f.Text * spec.ContextDim)}
	entry.Pooled = Wave(spec.PooledDim)
	if spec.Context2Dim > 0 { // HunyuanDiT has fixed lengths of 77 and 256 tokens
		entry.Context = dit.Array{Rows: 77, Cols: spec.ContextDim, Data: Wave(77 * spec.ContextDim)}
		entry.Context2 = dit.Array{Rows: 256, Cols: spec.Context2Dim, Data: Wave(256 * spec.Context2Dim)}
	}
	scale := m.Format.Pixels()
	latent := request.NewLatent(1, spec.Channels, h/scale, w/scale)
	noise := request.NewLatent(1, spec.Channels, h/scale, w/scale)
	noise.Data = Wave(noise.Len())
	r := &request.Request{
		Sampling: m.Sampling, Sampler: "euler", Sigmas: sigmas, Latent: latent, Noise: noise, Plan: f.Plan,
		Branches: []request.Branch{{Name: "positive", Entries: []request.Entry{entry}}},
	}
	if f.Entries == 2 {
		r.Guider = request.Guider{Kind: request.GuideCFG, CFG: 4}
		r.Branches = append(r.Branches, request.Branch{Name: "negative", Entries: []request.Entry{entry}})
	}
	return r, nil
}
