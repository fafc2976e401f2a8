package classes

import (
	"math"
	"time"

	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

// sampleClasses are the rows of the two KSamplers.
func sampleClasses() []graph.Class {
	samplers, schedules := sampling.SamplerNames(), sampling.ScheduleNames()
	steps := graph.Int("steps", "number of denoising steps", 20, 1, 10000, 0)
	cfg := graph.Float("cfg", "scale of classifier-free guidance; 1 leaves the negative out", 8, 0, 100, 0.1).
		With("round", 0.01)
	step := func(name string, preset int64) graph.Input {
		return graph.Int(name, "", preset, 0, 10000, 0)
	}
	return []graph.Class{
		{
			Name: "KSampler", Module: "nodes", Category: "model/sampling",
			Aliases: "sampler, sample, generate, denoise, diffuse, txt2img, img2img", Heavy: graph.StageDenoise,
			Description: "Denoises the latent with model and conditionings.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", "the model that denoises"), graph.SeedInput("seed"), steps, cfg,
				graph.Combo("sampler_name", "update rule", samplers...),
				graph.Combo("scheduler", "how the noise falls from step to step", schedules...),
				graph.Link("positive", "CONDITIONING", "what the picture should show"),
				graph.Link("negative", "CONDITIONING", "what it should not"),
				graph.Link("latent_image", "LATENT", "the latent to denoise"),
				graph.Float("denoise", "below 1 keeps a part of the latent", 1, 0, 1, 0.01),
			},
			Outputs: graph.Slots("LATENT"), Run: ksampler,
		},
		{
			Name: "KSamplerAdvanced", Display: "KSampler (Advanced)", Module: "nodes", Category: "model/sampling",
			Heavy: graph.StageDenoise,
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.BareCombo("add_noise", "enable", "disable").AsAdvanced(),
				graph.SeedInput("noise_seed"), steps, cfg,
				graph.BareCombo("sampler_name", samplers...), graph.BareCombo("scheduler", schedules...),
				graph.Bare("positive", "CONDITIONING"), graph.Bare("negative", "CONDITIONING"),
				graph.Bare("latent_image", "LATENT"), step("start_at_step", 0).AsAdvanced(), step("end_at_step",
					10000).AsAdvanced(),
				graph.BareCombo("return_with_leftover_noise", "disable", "enable").AsAdvanced(),
			},
			Outputs: graph.Slots("LATENT"), Run: ksamplerAdvanced,
		},
	}
}

// kSettings are what the two KSamplers have in common. Start and Last below 0 are absent.
type kSettings struct {
	Model              *value.Model
	Seed               uint64
	Steps              int
	CFG                float64
	Sampler, Scheduler string
	Positive, Negative value.Conditioning
	Latent             *value.Latent
	Denoise            float64
	NoNoise            bool
	Start, Last        int
	ForceFull          bool // the last sigma becomes 0 where Last cuts the schedule
	Hint               value.HintFunc
}

func readKSettings(c *graph.Call, seed string) kSettings {
	return kSettings{
		Model: graph.Arg[*value.Model](c, "model"), Seed: c.Seed(seed), Steps: c.Whole("steps"), CFG: c.Decimal("cfg"),
		Sampler: c.Str("sampler_name"), Scheduler: c.Str("scheduler"), Latent: graph.Arg[*value.Latent](c, "latent_image"),
		Positive: graph.Arg[value.Conditioning](c, "positive"), Negative: graph.Arg[value.Conditioning](c, "negative"),
		Denoise: 1, Start: -1, Last: -1, Hint: hints(c),
	}
}

func ksampler(c *graph.Call) ([]any, error) {
	k := readKSettings(c, "seed")
	k.Denoise = c.Decimal("denoise")
	req, err := lowerKSampler(k)
	if err != nil {
		return nil, err
	}
	out, _, err := runSampling(c, req, k.Model, k.Latent)
	return []any{out}, err
}

func ksamplerAdvanced(c *graph.Call) ([]any, error) {
	k := readKSettings(c, "noise_seed")
	k.NoNoise = c.Str("add_noise") == "disable"
	k.Start, k.Last = c.Whole("start_at_step"), c.Whole("end_at_step")
	k.ForceFull = c.Str("return_with_leftover_noise") == "disable"
	req, err := lowerKSampler(k)
	if err != nil {
		return nil, err
	}
	out, _, err := runSampling(c, req, k.Model, k.Latent)
	return []any{out}, err
}

// lowerKSampler turns the settings of a KSampler into a request. A request without sigmas means that the latent stays
// as it is.
func lowerKSampler(k kSettings) (*parallel.Request, error) {
	if math.IsNaN(k.CFG) || math.IsInf(k.CFG, 0) {
		return nil, fault.Bad("cfg", "%v is not a finite number", k.CFG)
	}
	sigmas, err := sampling.KSamplerSigmas(k.Model.Sampling, k.Sampler, k.Scheduler, k.Steps, k.Denoise)
	if err != nil {
		return nil, fault.At(fault.CodeBadInput, "scheduler", "%v", err)
	}
	return value.Lower(value.Lowering{
		Model: k.Model, Sampler: value.Sampler{Name: k.Sampler},
		Sigmas: sampling.CutSteps(sigmas, k.Start, k.Last, k.ForceFull),
		Latent: k.Latent, Seed: k.Seed, NoNoise: k.NoNoise,
		Rule: parallel.Guider{Kind: parallel.GuideCFG, CFG: float32(k.CFG)}, Hint: k.Hint,
		Branches: []value.GuiderBranch{
			{Name: "positive", Conditioning: k.Positive},
			{Name: "negative", Conditioning: k.Negative},
		},
	})
}

// runSampling runs a request and brings its results back into the VAE's space: the result and the last denoised latent.
func runSampling(c *graph.Call, req *parallel.Request, m *value.Model, source *value.Latent) (out,
	denoised *value.Latent, err error,
) {
	keep := func(s parallel.Latent) *value.Latent {
		return &value.Latent{Samples: s, NoiseMask: source.NoiseMask, BatchIndex: source.BatchIndex}
	}
	if len(req.Sigmas) == 0 {
		l := keep(req.Latent)
		return l, l, nil
	}
	req.Plan, req.Preview, req.Profile = c.Job.Plan, c.Job.Preview, c.Job.Profile
	began := time.Now()
	result, err := c.Use().Sample(req, m, func(p parallel.Progress) error {
		return reportProgress(c, m, p)
	})
	if err != nil {
		return nil, nil, err
	}
	result.Stats.Model = m.Name
	c.Sampled(result.Stats, time.Since(began).Seconds())
	m.Format.FromModel(result.Latent.Data, result.Latent.Y*result.Latent.X)
	if err := value.Finite(result.Latent.Data); err != nil {
		return nil, nil, fault.New(fault.CodeBadInput,
			"the %s sampler gave no usable latent (%v); other schedulers or fewer changes to sigmas may help", req.Sampler, err)
	}
	out = keep(result.Latent)
	if result.X0.Len() == 0 {
		return out, out, nil
	}
	m.Format.FromModel(result.X0.Data, result.X0.Y*result.X0.X)
	return out, keep(result.X0), nil
}

// reportProgress tells of a step, and shows it where somebody asked for previews.
func reportProgress(c *graph.Call, m *value.Model, p parallel.Progress) error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if c.Job.Preview && p.X0.Len() > 0 {
		if jpeg := m.Preview(p.X0); jpeg != nil {
			c.Emit(graph.Event{Type: "preview", Data: map[string]any{"node": c.ID, "value": p.Step, "max": p.Steps}, Blob: jpeg})
		}
	}
	data := map[string]any{"value": p.Step, "max": p.Steps, "node": c.ID}
	if sent := p.ByAxis(); len(sent) > 0 { // ComfyUI has one device
		data["sent"] = sent
	}
	c.Emit(graph.Event{Type: "progress", Data: data})
	return nil
}
