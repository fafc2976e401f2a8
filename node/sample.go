package node

import (
	"math"
	"slices"
	"time"

	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/picture"
	"patchbay/parallel"
)

// sampleClasses are the rows of the two KSamplers.
func sampleClasses() []Class {
	samplers, schedules := sampling.SamplerNames(), sampling.ScheduleNames()
	steps := number("steps", "INT", "number of denoising steps", "default", int64(20), "min", int64(1), "max", int64(10000))
	cfg := number("cfg", "FLOAT", "scale of classifier-free guidance; 1 leaves the negative out", "default", 8.0, "min", 0.0, "max", 100.0, "step", 0.1, "round", 0.01)
	step := func(name string, preset int64) Input {
		return number(name, "INT", "", "default", preset, "min", int64(0), "max", int64(10000))
	}
	return []Class{
		{
			Name: "KSampler", Module: "nodes", Category: "sampling", Heavy: stageDenoise,
			Description: "Denoises the latent with model and conditionings.",
			Inputs: []Input{
				linkIn("model", "MODEL", "the model that denoises"), seedInput("seed"), steps, cfg,
				combo("sampler_name", "update rule", samplers...), combo("scheduler", "how the noise falls from step to step", schedules...),
				linkIn("positive", "CONDITIONING", "what the picture should show"), linkIn("negative", "CONDITIONING", "what it should not"),
				linkIn("latent_image", "LATENT", "the latent to denoise"),
				number("denoise", "FLOAT", "below 1 keeps a part of the latent", "default", 1.0, "min", 0.0, "max", 1.0, "step", 0.01),
			},
			Outputs: slots("LATENT"), Run: ksampler,
		},
		{
			Name: "KSamplerAdvanced", Display: "KSampler (Advanced)", Module: "nodes", Category: "sampling", Heavy: stageDenoise,
			Inputs: []Input{
				bareIn("model", "MODEL"), bareCombo("add_noise", "enable", "disable"), seedInput("noise_seed"), steps, cfg,
				bareCombo("sampler_name", samplers...), bareCombo("scheduler", schedules...), bareIn("positive", "CONDITIONING"), bareIn("negative", "CONDITIONING"),
				bareIn("latent_image", "LATENT"), step("start_at_step", 0), step("end_at_step", 10000), bareCombo("return_with_leftover_noise", "disable", "enable"),
			},
			Outputs: slots("LATENT"), Run: ksamplerAdvanced,
		},
	}
}

// kSettings are what the two KSamplers have in common. Start and Last below 0 are absent.
type kSettings struct {
	Model              *Model
	Seed               uint64
	Steps              int
	CFG                float64
	Sampler, Scheduler string
	Positive, Negative Conditioning
	Latent             *Latent
	Denoise            float64
	NoNoise            bool
	Start, Last        int
	ForceFull          bool // the last sigma becomes 0 where Last cuts the schedule
}

func (c *Call) kSettings(seed string) kSettings {
	return kSettings{
		Model: value[*Model](c, "model"), Seed: c.seed(seed), Steps: c.whole("steps"), CFG: c.decimal("cfg"),
		Sampler: c.str("sampler_name"), Scheduler: c.str("scheduler"), Latent: value[*Latent](c, "latent_image"),
		Positive: value[Conditioning](c, "positive"), Negative: value[Conditioning](c, "negative"), Denoise: 1, Start: -1, Last: -1,
	}
}

func ksampler(c *Call) ([]any, error) {
	k := c.kSettings("seed")
	k.Denoise = c.decimal("denoise")
	req, err := lowerKSampler(k)
	if err != nil {
		return nil, err
	}
	out, _, err := c.sample(req, k.Model, k.Latent)
	return []any{out}, err
}

func ksamplerAdvanced(c *Call) ([]any, error) {
	k := c.kSettings("noise_seed")
	k.NoNoise = c.str("add_noise") == "disable"
	k.Start, k.Last = c.whole("start_at_step"), c.whole("end_at_step")
	k.ForceFull = c.str("return_with_leftover_noise") == "disable"
	req, err := lowerKSampler(k)
	if err != nil {
		return nil, err
	}
	out, _, err := c.sample(req, k.Model, k.Latent)
	return []any{out}, err
}

// lowerKSampler turns the settings of a KSampler into a request. A request without sigmas means that the latent stays as it is.
func lowerKSampler(k kSettings) (*parallel.Request, error) {
	if math.IsNaN(k.CFG) || math.IsInf(k.CFG, 0) {
		return nil, fault.At(fault.CodeBadInput, "cfg", "cfg: %v is not a finite number", k.CFG)
	}
	sigmas, err := sampling.KSamplerSigmas(k.Model.Sampling, k.Sampler, k.Scheduler, k.Steps, k.Denoise)
	if err != nil {
		return nil, fault.At(fault.CodeBadInput, "scheduler", "%v", err)
	}
	return lower(lowering{
		model: k.Model, sampler: Sampler{Name: k.Sampler}, sigmas: sampling.CutSteps(sigmas, k.Start, k.Last, k.ForceFull),
		latent: k.Latent, seed: k.Seed, noNoise: k.NoNoise, rule: parallel.Guider{Kind: parallel.GuideCFG, CFG: float32(k.CFG)},
		branches: []GuiderBranch{{"positive", k.Positive}, {"negative", k.Negative}},
	})
}

// lowering is what every sampling node comes down to.
type lowering struct {
	model    *Model
	sampler  Sampler
	sigmas   []float32
	latent   *Latent
	seed     uint64
	noNoise  bool
	rule     parallel.Guider
	branches []GuiderBranch
}

// lower makes the request: latent in model space, noise for the whole batch, mask at latent size, entries with their sigma ranges.
func lower(r lowering) (*parallel.Request, error) {
	m := r.model
	start, err := m.widen(r.latent.Samples)
	if err != nil {
		return nil, err
	}
	req := &parallel.Request{
		Model: m.request(), Sampling: m.Sampling, Sampler: r.sampler.Name, Options: r.sampler.Options, Sigmas: r.sigmas,
		Latent: start, Seed: r.seed, Guider: r.rule,
	}
	req.Cache = m.Cache
	if m.Differential != nil {
		req.Differential, req.DifferentialStrength = true, *m.Differential
	}
	if len(r.sigmas) == 0 {
		return req, nil
	}
	if !allZero(start.Data) { // an empty latent is not shifted
		data := append([]float32(nil), start.Data...)
		m.Format.ToModel(data)
		req.Latent.Data = data
	}
	if !r.noNoise {
		noise := start
		item := start.C * start.Y * start.X
		if noise.Data, _, err = sampling.PrepareNoise(r.seed, start.B, item, r.latent.BatchIndex); err != nil {
			return nil, fault.At(fault.CodeBadInput, "latent_image", "latent_image: %v", err)
		}
		if len(noise.Data) != start.Len() {
			return nil, fault.At(fault.CodeBadInput, "latent_image", "latent_image: batch_index has %d entries, the batch %d", len(r.latent.BatchIndex), start.B)
		}
		req.Noise, req.NoiseDraws = noise, noiseDraws(r.latent.BatchIndex, start.B, item)
	}
	if r.latent.NoiseMask != nil {
		req.Mask = fitMask(r.latent.NoiseMask, start.Y, start.X, start.B)
	}
	for _, b := range r.branches {
		branch, err := m.branch(b, start)
		if err != nil {
			return nil, err
		}
		req.Branches = append(req.Branches, branch)
	}
	return req, nil
}

// noiseDraws are the draws that PrepareNoise makes: one for the batch, or one an item up to the largest index.
func noiseDraws(index []int, batch, item int) []int {
	if index == nil {
		return []int{batch * item}
	}
	out := make([]int, slices.Max(index)+1)
	for i := range out {
		out[i] = item
	}
	return out
}

// widen gives an empty latent the model's channels; one that holds a picture must have them.
func (m *Model) widen(l parallel.Latent) (parallel.Latent, error) {
	want := m.Format.Channels
	if l.C == want {
		return l, nil
	}
	if !allZero(l.Data) {
		return l, fault.At(fault.CodeWrongFamily, "latent_image", "latent_image: has %d channels, the %s model takes %d: encode it with the VAE of that family", l.C, m.Spec.Family, want)
	}
	return parallel.NewLatent(l.B, want, l.Y, l.X), nil
}

func allZero(v []float32) bool {
	for _, x := range v {
		if x != 0 {
			return false
		}
	}
	return true
}

// branch lowers one conditioning list.
func (m *Model) branch(b GuiderBranch, l parallel.Latent) (parallel.Branch, error) {
	out := parallel.Branch{Name: b.Name}
	for i := range b.Conditioning {
		c := &b.Conditioning[i]
		if c.Context.Cols != m.Spec.ContextDim {
			return out, fault.At(fault.CodeWrongFamily, b.Name, "%s: the text states have %d channels, the %s model takes %d: load the text encoders of that family", b.Name, c.Context.Cols, m.Spec.Family, m.Spec.ContextDim)
		}
		e := parallel.Entry{Strength: 1, MaskStrength: 1}
		e.Context, e.Pooled, e.ContextLen = c.Context, c.Pooled, c.ContextLen
		e.Context2, e.Context2Len, e.Size = c.Context2, c.Context2Len, c.Size
		if e.Size == nil {
			e.Size = m.told(c.Pixels, l)
		}
		if m.Spec.TakesGuidance && !c.NoGuidance {
			g := float32(defaultGuidance)
			if c.Guidance != nil {
				g = *c.Guidance
			}
			e.Guidance = &g
		}
		if c.HasStrength {
			e.Strength = c.Strength
		}
		if c.Ranged {
			e.Ranged = true
			e.SigmaStart, e.SigmaEnd = float32(m.Sampling.PercentToSigma(c.Start)), float32(m.Sampling.PercentToSigma(c.End))
		}
		e.Area = c.area(l)
		if c.Mask != nil {
			e.Mask = fitMask(c.Mask, l.Y, l.X, min(c.Mask.B, l.B))
			e.MaskStrength, e.MaskBounds = c.MaskStrength, c.MaskBounds
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// told is the picture size that PixArt-Alpha and HunyuanDiT are told (dit.Entry.Size): pixels [height, width] if they are given, else those of the whole
// latent, also for an entry with an area (ComfyUI encode_model_conds). nil for other families.
func (m *Model) told(pixels [2]int, l parallel.Latent) []float32 {
	if pixels[0] <= 0 || pixels[1] <= 0 {
		pixels = [2]int{8 * l.Y, 8 * l.X}
	}
	h, w := float32(pixels[0]), float32(pixels[1])
	switch m.Spec.Family {
	case "pixart":
		return []float32{h, w, float32(float64(pixels[0]) / float64(pixels[1]))}
	case "hunyuandit":
		return []float32{h, w, h, w, 0, 0}
	}
	return nil
}

// defaultGuidance is what ComfyUI's FLUX takes where a conditioning carries no guidance (model_base.Flux.extra_conds).
const defaultGuidance = 3.5

// area resolves an area given in parts of the latent: at least one row and column.
func (c *Cond) area(l parallel.Latent) parallel.Area {
	if c.AreaPart == nil {
		return c.Area
	}
	part := func(i, n int) int { return int(math.RoundToEven(c.AreaPart[i] * float64(n))) }
	return parallel.Area{H: max(1, part(0, l.Y)), W: max(1, part(1, l.X)), Y: part(2, l.Y), X: part(3, l.X)}
}

// fitMask scales a mask to the size of a latent and repeats or cuts its batch: [B, Y, X] -> [b, 1, y, x].
func fitMask(m *picture.Mask, y, x, b int) parallel.Latent {
	out := parallel.NewLatent(b, 1, y, x)
	scaled := m.Data
	if m.Y != y || m.X != x {
		scaled = bilinear(m.Data, m.B, m.Y, m.X, y, x)
	}
	for i := range b {
		copy(out.Data[i*y*x:(i+1)*y*x], scaled[(i%m.B)*y*x:])
	}
	return out
}

// bilinear resizes planes [n, y, x] to [n, toY, toX] as torch's interpolate(mode="bilinear", align_corners=False) does: no antialiasing, f32.
func bilinear(v []float32, n, y, x, toY, toX int) []float32 {
	out := make([]float32, 0, n*toY*toX)
	rows, cols := taps(y, toY), taps(x, toX)
	for i := range n {
		plane := v[i*y*x:]
		for _, r := range rows {
			for _, c := range cols {
				top := (1-c.part)*plane[r.at*x+c.at] + c.part*plane[r.at*x+c.next]
				bottom := (1-c.part)*plane[r.next*x+c.at] + c.part*plane[r.next*x+c.next]
				out = append(out, (1-r.part)*top+r.part*bottom)
			}
		}
	}
	return out
}

// tap is where one output position reads: two neighbours and the weight of the second.
type tap struct {
	at, next int
	part     float32
}

func taps(from, to int) []tap {
	out := make([]tap, to)
	scale := float32(from) / float32(to)
	for i := range out {
		s := max(scale*(float32(i)+0.5)-0.5, 0)
		at := min(int(s), from-1)
		out[i] = tap{at, min(at+1, from-1), s - float32(at)}
	}
	return out
}

// sample runs a request and brings its results back into the VAE's space: the result and the last denoised latent.
func (c *Call) sample(req *parallel.Request, m *Model, source *Latent) (out, denoised *Latent, err error) {
	keep := func(s parallel.Latent) *Latent {
		return &Latent{Samples: s, NoiseMask: source.NoiseMask, BatchIndex: source.BatchIndex}
	}
	if len(req.Sigmas) == 0 {
		l := keep(req.Latent)
		return l, l, nil
	}
	if c.run == nil || c.run.engine == nil {
		return nil, nil, fault.New(fault.CodeInternal, "sampling needs a device, and this runner has none")
	}
	req.Plan, req.Preview, req.Profile = c.Job.Plan, c.Job.Preview, c.Job.Profile
	req.Compute = c.run.compute.of(c.run.engine.Name(), m)
	defer c.share(req, m)()
	began := time.Now()
	result, err := c.run.engine.Sample(c.Context, req, func(p parallel.Progress) error {
		return c.progress(m, p)
	})
	if err != nil {
		return nil, nil, err
	}
	result.Stats.Model = m.Name
	*c.stats = append(*c.stats, result.Stats)
	c.spent.Load += result.Stats.LoadSeconds
	c.spent.Denoise += seconds(began) - result.Stats.LoadSeconds
	c.spent.Steps = append(c.spent.Steps, result.Stats.StepSeconds...)
	m.Format.FromModel(result.Latent.Data)
	if err := finite(result.Latent.Data); err != nil {
		return nil, nil, fault.New(fault.CodeBadInput, "the %s sampler gave no usable latent (%v); other schedulers or fewer changes to sigmas may help", req.Sampler, err)
	}
	out = keep(result.Latent)
	if result.X0.Len() == 0 {
		return out, out, nil
	}
	m.Format.FromModel(result.X0.Data)
	return out, keep(result.X0), nil
}

// progress tells of a step, and shows it where somebody asked for previews.
func (c *Call) progress(m *Model, p parallel.Progress) error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if c.Job.Preview && p.X0.Len() > 0 {
		if jpeg := previewJPEG(m.Format, p.X0); jpeg != nil {
			c.emit(Event{Type: "preview", Node: c.ID, Data: map[string]any{"node": c.ID, "value": p.Step, "max": p.Steps}, Blob: jpeg})
		}
	}
	c.emit(Event{Type: "progress", Node: c.ID, Data: map[string]any{"value": p.Step, "max": p.Steps, "node": c.ID}})
	return nil
}
