package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/daemon"
	"patchbay/engine"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/sampling"
	"patchbay/models/source"
	"patchbay/parallel"
	"patchbay/parallel/forecast"
)

// stepFlags are the flags of bench step.
type stepFlags struct {
	timing
	model, size, plan     string
	save                  string
	compute               string
	steps, text, branches int
	devices               daemon.Config // --devices, --device-memory, --reserve
}

func stepCmd() *cobra.Command {
	var f stepFlags
	cmd := &cobra.Command{
		Use:   "step",
		Short: "Measure sampler steps of a model on this machine",
		Long: `step runs the denoise loop of a model on noise with made-up conditioning and prints the time of its steps,
what each rank sent and how long it waited. Without --model it takes the model of the demo. --save keeps the rates of
its products, attention and element-wise work in a profile, for plan --profile and serve --devices: stages of pipelines
are balanced and plans chosen by them. Rates depend on the model and the size: measure what you run.`,
		Example: "  patchbay bench step --plan pipe=2,patches=4 --steps 8",
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if err := f.devices.CheckDevices(); err != nil {
				return err
			}
			if f.save != "" && f.plan != "" {
				return console.BadInput(fmt.Errorf("--save measures one rank: leave --plan out"))
			}
			r, err := f.measure(cmd.Context())
			if err != nil {
				return err
			}
			return r.print(cmd.OutOrStdout(), f.json)
		},
	}
	f.add(cmd.Flags(), 1, 5)
	fl := cmd.Flags()
	settings.Devices(fl, &f.devices)
	fl.StringVar(&f.model, "model", "", "file of a diffusion model (default: the demo's)")
	fl.StringVar(&f.size, "size", "256x256", "width x height in pixels")
	fl.StringVar(&f.plan, "plan", "", "how to split the work (default: one rank)")
	fl.StringVar(&f.save, "save", "", "profile to keep the rates of this model in")
	fl.StringVar(&f.compute, "compute", "f32", "type of activations: f32 or bf16")
	fl.IntVar(&f.steps, "steps", 4, "steps of a run")
	fl.IntVar(&f.text, "text", 32, "text tokens")
	fl.IntVar(&f.branches, "entries", 2, "conditioning entries: 2 with cfg, 1 without")
	return cmd
}

// request makes a run on noise.
func (f *stepFlags) request(d *family.Diffusion, from source.Weights) (*parallel.Request, error) {
	w, h := 0, 0
	if n, err := fmt.Sscanf(f.size, "%dx%d", &w, &h); n != 2 || err != nil || w < 16 || h < 16 || w > 4096 || h > 4096 {
		return nil, fmt.Errorf("--size %s: want width x height from 16 to 4096 pixels", f.size)
	}
	if f.steps < 1 || f.steps > 1000 || f.text < 1 || f.text > 4096 || f.branches < 1 || f.branches > 2 {
		return nil, fmt.Errorf("want --steps 1 to 1000, --text 1 to 4096, --entries 1 or 2")
	}
	compute, ok := map[string]engine.DType{"f32": engine.F32, "bf16": engine.BF16}[f.compute]
	if !ok {
		return nil, fmt.Errorf("--compute %s: want f32 or bf16", f.compute)
	}
	line, err := d.Sampling.Build()
	if err != nil {
		return nil, err
	}
	sigmas, err := sampling.KSamplerSigmas(line, "euler", "simple", f.steps, 1)
	if err != nil {
		return nil, err
	}
	spec := d.Spec
	wave := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(math.Sin(float64(i)))
		}
		return v
	}
	entry := parallel.Entry{Strength: 1}
	entry.Context = dit.Array{Rows: f.text, Cols: spec.ContextDim, Data: wave(f.text * spec.ContextDim)}
	entry.Pooled = wave(spec.PooledDim)
	if spec.Context2Dim > 0 { // HunyuanDiT has a place for 77 and 256 tokens
		entry.Context = dit.Array{Rows: 77, Cols: spec.ContextDim, Data: wave(77 * spec.ContextDim)}
		entry.Context2 = dit.Array{Rows: 256, Cols: spec.Context2Dim, Data: wave(256 * spec.Context2Dim)}
	}
	latent := parallel.NewLatent(1, spec.Channels, h/8, w/8)
	noise := parallel.NewLatent(1, spec.Channels, h/8, w/8)
	noise.Data = wave(noise.Len())
	r := &parallel.Request{
		Model: parallel.Model{
			Key: from.Key(), Spec: &spec, Weights: from,
		},
		Sampling: line, Sampler: "euler", Sigmas: sigmas, Latent: latent, Noise: noise, Plan: f.plan, Compute: compute,
		Branches: []parallel.Branch{{Name: "positive", Entries: []parallel.Entry{entry}}},
	}
	if f.branches == 2 {
		r.Guider = parallel.Guider{Kind: parallel.GuideCFG, CFG: 4}
		r.Branches = append(r.Branches, parallel.Branch{Name: "negative", Entries: []parallel.Entry{entry}})
	}
	return r, nil
}

func (f *stepFlags) measure(ctx context.Context) (_ *report, err error) {
	path := f.model
	if path == "" {
		examples, err := workflow.Examples()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(examples, "demo", "diffusion_models", "demo_flux.safetensors")
	}
	stat, file, err := source.Stat(path, true)
	if err != nil {
		return nil, err
	}
	defer console.CloseQuietly(file)
	d, err := models.OpenDiffusion(file.Set(), file.Metadata())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	w := source.Weights{Model: source.Model{File: stat}, Loader: &source.Loader{}}
	req, err := f.request(d, w)
	if err != nil {
		return nil, console.BadInput(err)
	}
	cfg, release, err := f.devices.EngineConfig()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	eng, err := parallel.NewEngine(cfg)
	if err != nil {
		return nil, err
	}
	defer eng.Close()
	var steps, runs []float64
	var last parallel.Stats
	for i := range f.warmup + f.runs {
		res, err := eng.Sample(ctx, req, nil)
		if err != nil {
			return nil, err
		}
		last = res.Stats
		if i < f.warmup {
			continue
		}
		sum := 0.0
		for _, s := range res.Stats.StepSeconds {
			steps, sum = append(steps, s), sum+s
		}
		runs = append(runs, sum)
	}
	if f.save != "" {
		if err := f.keep(ctx, eng, req); err != nil {
			return nil, err
		}
	}
	plan := last.Plan
	return &report{
		Benchmark: "step", Warmup: f.warmup,
		Samples: []sample{summarise("step, "+plan, steps), summarise(fmt.Sprintf("%d steps, %s", f.steps, plan), runs)},
		Inside:  "network evaluations, exchanges, guidance, sampler; the output is a latent",
		Outside: "reading and packing weights, opening the session (text projections, modulations), text encoders, VAE",
		Extra: map[string]any{
			"plan": plan, "compute": last.Compute.String(), "model": path, "size": f.size,
			"processors": runtime.GOMAXPROCS(0), "engine": eng.Name(), "peak_bytes": last.PeakBytes,
			"traffic": last.Traffic, "tokens": last.Tokens, "evaluations": last.Evaluations,
		},
	}, nil
}

// keep profiles one more run and saves its rates.
func (f *stepFlags) keep(ctx context.Context, eng *parallel.Engine, req *parallel.Request) error {
	profiled := *req
	profiled.Profile = true
	res, err := eng.Sample(ctx, &profiled, nil)
	if err != nil {
		return err
	}
	return saveMachine(f.save, func(m *forecast.Machine) error {
		m.Device.WeightBytes = 4
		m.Device.Source = fmt.Sprintf("patchbay bench step: %s, %s px, %s, %d processors", filepath.Base(req.Model.Key),
			f.size, eng.Name(), runtime.GOMAXPROCS(0))
		return m.Measure(req.Workload(), res.Stats.Spans, req.Compute.Size())
	})
}
