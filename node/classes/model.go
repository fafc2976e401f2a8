package classes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// modelClasses returns the classes that change a MODEL's sampling, its use of masks, its step cache, or nothing.
func modelClasses() []graph.Class {
	const module = "comfy_extras.nodes_model_advanced"
	shift := func(name string, preset float64) graph.Input {
		return graph.Float(name, "", preset, 0, 100, 0.01)
	}
	side := func(name string) graph.Input { return graph.Int(name, "", 1024, 16, 16384, 8) }
	flow := func(name, category string, preset, multiplier float64) graph.Class {
		return graph.Class{
			Name: name, Module: module, Category: category,
			Inputs:  []graph.Input{graph.Bare("model", "MODEL"), shift("shift", preset)},
			Outputs: graph.Slots("MODEL"), Run: onModel(func(c *graph.Call, m *value.Model) (err error) {
				if err := oneSchedule(m); err != nil {
					return err
				}
				if m.Sampling, err = sampling.NewFlow(c.Decimal("shift"), multiplier); err != nil {
					return fault.Bad("shift", "%v", err)
				}
				return nil
			}),
		}
	}
	return []graph.Class{
		{
			Name: "ModelSamplingFlux", Module: module, Category: "model/patch/flux",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), shift("max_shift", 1.15).AsAdvanced(), shift("base_shift", 0.5).AsAdvanced(),
				side("width"), side("height"),
			},
			Outputs: graph.Slots("MODEL"), Run: onModel(modelSamplingFlux),
		},
		{
			Name: "ModelSamplingDiscrete", Module: module, Category: "model/patch",
			Description: "Says what the network of a model with noise steps predicts.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"),
				graph.BareCombo("sampling", "eps", "v_prediction", "lcm", "x0", "img_to_img", "img_to_img_flow"),
				graph.Bool("zsnr", "", false).AsAdvanced(),
			},
			Outputs: graph.Slots("MODEL"), Check: checkDiscrete, Run: onModel(func(c *graph.Call, m *value.Model) (err error) {
				zero, _ := c.Raw("zsnr").(bool)
				m.Sampling, err = m.Sampling.Discrete(discretePredictions[c.Str("sampling")], zero)
				return err
			}),
		},
		continuous("ModelSamplingContinuousEDM", 120, 0.002, func(m *value.Model, how string, low, high float64) (err error) {
			if how == playground {
				to := latent.Playground25()
				if m.Format.Channels != to.Channels {
					return fault.Family("model", "%s is for models with latents of %d channels, those of %s have %d", how,
						to.Channels, m.Spec.Family, m.Format.Channels)
				}
				m.Format = to
			}
			m.Sampling, err = m.Sampling.Continuous(continuousPredictions[how], low, high)
			return err
		}, "v_prediction", "edm", playground, "eps", "cosmos_rflow"),
		continuous("ModelSamplingContinuousV", 500, 0.03, func(m *value.Model, _ string, low, high float64) (err error) {
			m.Sampling, err = m.Sampling.Arc(low, high)
			return err
		}, "v_prediction"),
		{
			Name: "RescaleCFG", Module: module, Category: "model/patch",
			Description: "Brings what guidance makes of a latent nearer to the deviation of the positive prediction.",
			Inputs:      []graph.Input{graph.Bare("model", "MODEL"), graph.Float("multiplier", "", 0.7, 0, 1, 0.01)},
			Outputs:     graph.Slots("MODEL"), Run: onModel(func(c *graph.Call, m *value.Model) error {
				multiplier := float32(c.Decimal("multiplier"))
				m.Rescale = &multiplier
				return nil
			}),
		},
		flow("ModelSamplingSD3", "model/patch/stable diffusion", 3, 1000),
		flow("ModelSamplingAuraFlow", "model/patch", 1.73, 1),
		{
			Name: "DifferentialDiffusion", Display: "Differential Diffusion",
			Module: "comfy_extras.nodes_differential_diffusion", Category: "experimental",
			Aliases: "inpaint gradient, variable denoise strength", Experimental: true,
			Description: "Lets grey parts of a noise mask change later in the run than white ones.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""),
				graph.Float("strength", "below 1 blends with the mask as it is", 1, 0, 1, 0.01).AsOptional(),
			},
			Outputs: graph.Slots("MODEL"), Run: onModel(func(c *graph.Call, m *value.Model) error {
				strength := float32(1)
				if c.Given("strength") {
					strength = float32(c.Decimal("strength"))
				}
				m.Differential = &strength
				return nil
			}),
		},
		{
			Name: "ModelAttentionBackend", Module: module, Category: "model/patch",
			Description: "Taken for workflows that have it; the kernels of attention cannot be chosen.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.BareCombo("attention", "pytorch attention"),
			},
			SelfChecked: []string{"attention"},
			Outputs:     graph.Slots("MODEL"), Run: func(c *graph.Call) ([]any, error) {
				c.Warn("node %s: ModelAttentionBackend has no effect: the kernels of attention cannot be chosen", c.ID)
				return []any{c.Raw("model")}, nil
			},
		},
		sparseAttention(),
		cacheRow("EasyCache", "measured at the network.", request.CacheEasy),
		cacheRow("LazyCache", "measured at the latent; for every model.", request.CacheLazy),
	}
}

// oneSchedule refuses models whose sound has a schedule of its own.
func oneSchedule(m *value.Model) error {
	if m.Sampling.SoundShift() == 0 {
		return nil
	}
	return fault.Family("model", "%s models have two schedules: set both shifts with MiniMaxH3SigmaShift", m.Spec.Family)
}

const playground = "edm_playground_v2.5"

// continuousPredictions are the predictions of ModelSamplingContinuousEDM by name.
var continuousPredictions = map[string]sampling.Prediction{
	"eps": sampling.Eps, "v_prediction": sampling.V, "edm": sampling.EDM, playground: sampling.EDM,
	"cosmos_rflow": sampling.CosmosFlow,
}

// continuous returns a class that replaces a model's sigmas by all between two, of networks that predict one of what
// there is.
func continuous(name string, most, least float64,
	change func(m *value.Model, how string, low, high float64) error, predictions ...string,
) graph.Class {
	end := func(name string, preset float64) graph.Input {
		return graph.Float(name, "", preset, 0, 1000, 0.001).With("round", false).AsAdvanced()
	}
	return graph.Class{
		Name: name, Module: "comfy_extras.nodes_model_advanced", Category: "model/patch",
		Description: "Says what the network of a model predicts that was trained at every sigma of a range.",
		Inputs: []graph.Input{
			graph.Bare("model", "MODEL"), graph.BareCombo("sampling", predictions...), end("sigma_max", most),
			end("sigma_min", least),
		},
		Outputs: graph.Slots("MODEL"), Run: onModel(func(c *graph.Call, m *value.Model) error {
			low, high := c.Decimal("sigma_min"), c.Decimal("sigma_max")
			if !(low > 0 && low < high) {
				return fault.Bad("sigma_min", "%v: want a number above 0 and below sigma_max, which is %v", low, high)
			}
			if err := oneSchedule(m); err != nil {
				return err
			}
			return change(m, c.Str("sampling"), low, high)
		}),
	}
}

// sparseAttention returns ComfyUI's class (0.35.0, comfy_extras/nodes_sparse_attention.py) that lets queries read the
// blocks of keys that count most. ComfyUI does so in a CUDA kernel alone, and elsewhere runs dense, as everything does
// here. Each method has the name that the class gave it first, too.
func sparseAttention() graph.Class {
	part := func(name, tip string, preset, least, most, step float64) graph.Input {
		return graph.Float(name, tip, preset, least, most, step)
	}
	const first, later = "VSA (FastVideo)", "vsa"
	threshold := []graph.Input{part("tau", "in deviations of the scores; higher is sparser", 1.3, 0, 4, 0.05)}
	share := []graph.Input{part("keep_percent", "of the blocks of keys", 10, 0.5, 95, 0.5)}
	return graph.Class{
		Name: "BlockSparseAttention", Display: "Model Sparse Attention", Module: "comfy_extras.nodes_sparse_attention",
		Category: "model/patch", Aliases: "Block Sparse Attention", Experimental: true,
		Description: "Taken for workflows that have it; attention stays dense, as in ComfyUI without CUDA.",
		Inputs: []graph.Input{
			graph.Link("model", "MODEL", ""),
			graph.Branch("selection", "how blocks of keys are chosen; without effect",
				graph.Alternative{Key: "sol-attn", Inputs: threshold}, graph.Alternative{Key: "sla", Inputs: share},
				graph.Alternative{Key: later, Inputs: share}, graph.Alternative{Key: "Sol-Attn (adaptive tau)", Inputs: threshold},
				graph.Alternative{Key: "top-k (SLA)", Inputs: share}, graph.Alternative{Key: first, Inputs: share}),
			part("start_percent", "part of the run before which attention is dense", 0.2, 0, 1, 0.01),
			part("end_percent", "part of the run behind which attention is dense", 1, 0, 1, 0.01),
			graph.Number("dense_blocks", "STRING", "numbers and ranges of blocks, such as 0, 1, 47-49", "default", "",
				"multiline", false).AsAdvanced(),
			graph.Int("min_tokens", "shorter sequences are dense", 12288, 0, 1<<20, 512).AsAdvanced(),
			graph.Int("extra_tokens", "further keys of each block of queries", 256, 0, 256, 64).AsAdvanced(),
			graph.Combo("sink_conditioning", "what of texts, sounds and references is dense", "exact_kv", "exact_kv_and_rows",
				"off").With("default", "exact_kv_and_rows").AsAdvanced(),
			graph.Bool("verbose", "", false).AsAdvanced(),
		},
		Outputs: []graph.Slot{{Name: "model", Type: "MODEL"}}, Run: func(c *graph.Call) ([]any, error) {
			m, method := c.Model("model"), c.Str("selection")
			if (method == first || method == later) && m.Spec.Family != "minimaxh3" {
				return nil, fault.Family("model", "selection %s is for MiniMax-H3 models, not for %s (elsewhere: sol-attn, sla)",
					method, m.Spec.Family)
			}
			c.Warn("node %s: BlockSparseAttention has no effect: attention runs dense, as in ComfyUI without CUDA", c.ID)
			return []any{m}, nil
		},
	}
}

// discretePredictions are the predictions of ModelSamplingDiscrete that are supported, by name.
var discretePredictions = map[string]sampling.Prediction{
	"eps": sampling.Eps, "v_prediction": sampling.V, "lcm": sampling.LCM, "x0": sampling.X0,
}

// checkDiscrete rejects predictions that are not supported before anything runs.
func checkDiscrete(_ *graph.Job, _ *files.Roots, in *pyjson.Object) (field, text string) {
	name, ok := in.At("sampling").(string)
	if _, known := discretePredictions[name]; known || !ok {
		return "", ""
	}
	return "sampling", fmt.Sprintf("%s is not supported (supported: %s)", name,
		strings.Join(slices.Sorted(maps.Keys(discretePredictions)), ", "))
}

// onModel returns the run function of a class that outputs a modified copy of the input model.
func onModel(change func(c *graph.Call, m *value.Model) error) func(*graph.Call) ([]any, error) {
	return func(c *graph.Call) ([]any, error) {
		m := *c.Model("model")
		err := change(c, &m)
		return []any{&m}, err
	}
}

// modelSamplingFlux computes the shift from the size of the picture.
func modelSamplingFlux(c *graph.Call, m *value.Model) (err error) {
	m.Sampling, err = sampling.NewFlux(sampling.FluxShift(c.Decimal("max_shift"), c.Decimal("base_shift"),
		c.Whole("width"), c.Whole("height")))
	if err != nil {
		return fault.At(fault.BadInput, "max_shift", "max_shift, base_shift: %v", err)
	}
	return nil
}

// cacheRow returns a class that lets a MODEL reuse predictions between steps. A new cache replaces the old one.
// EasyCache only works for networks that ComfyUI calls through wrappers; others run without it, there and here.
func cacheRow(name, measured string, rule request.CacheRule) graph.Class {
	part := func(name string, preset float64, tip string) graph.Input {
		return graph.Float(name, tip, preset, 0, 1, 0.01).AsAdvanced()
	}
	return graph.Class{
		Name: name, Display: name, Module: "comfy_extras.nodes_easycache", Category: "advanced/debug", Experimental: true,
		Description: "Leaves out steps whose prediction is expected to change little, " + measured,
		Inputs: []graph.Input{
			graph.Link("model", "MODEL", "the model that may reuse"),
			graph.Float("reuse_threshold", "more reuses more steps and changes the picture more", 0.2, 0, 3, 0.01).AsAdvanced(),
			part("start_percent", 0.15, "part of the run before which every step runs"),
			part("end_percent", 0.95, "part of the run behind which every step runs"),
			graph.Bool("verbose", "tell for every step what was expected and measured", false).AsAdvanced(),
		},
		Outputs: graph.Slots("MODEL"), Run: onModel(func(c *graph.Call, m *value.Model) error {
			if rule == request.CacheEasy && m.Traits.NoStepCache {
				c.Warn("node %s: EasyCache has no effect on %s models, as in ComfyUI; LazyCache works on all", c.ID,
					m.Spec.Family)
				return nil
			}
			verbose, _ := c.Raw("verbose").(bool)
			m.Cache = &request.Cache{
				Rule: rule, Threshold: float32(c.Decimal("reuse_threshold")),
				Start: c.Decimal("start_percent"), End: c.Decimal("end_percent"), Verbose: verbose,
			}
			return nil
		}),
	}
}

// modelPatchClasses returns the classes that load and apply model patches.
func modelPatchClasses() []graph.Class {
	const module = "comfy_extras.nodes_model_patch"
	return []graph.Class{
		loader(graph.Class{
			Name: "ModelPatchLoader", Display: "Load Model Patch", Module: module, Experimental: true,
			Outputs: graph.Slots("MODEL_PATCH"),
		}, files.KindModelPatch, "name", value.OpenModelPatch),
		{
			Name: "QwenImageDiffsynthControlnet", Display: "Apply Qwen Image DiffSynth ControlNet", Module: module,
			Category: "model/patch/qwen", Experimental: true,
			Description: "Puts the layers of a patch behind the blocks of a model, which follow a picture.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.Bare("model_patch", "MODEL_PATCH"), graph.Bare("vae", "VAE"),
				graph.Bare("image", "IMAGE"), graph.Float("strength", "", 1, -10, 10, 0.01),
				graph.Bare("mask", "MASK").AsOptional(),
			},
			Outputs: graph.Slots("MODEL"), Run: onModel(patchModel),
		},
		{
			Name: "ZImageFunControlnet", Display: "Apply Z-Image Fun ControlNet", Module: module,
			Category: "model/patch/z-image", Experimental: true,
			Description: "Puts a control net beside the blocks of a model, which follows a picture or fills one in.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.Bare("model_patch", "MODEL_PATCH"), graph.Bare("vae", "VAE"),
				graph.Float("strength", "", 1, -10, 10, 0.01), graph.Bare("image", "IMAGE").AsOptional(),
				graph.Bare("inpaint_image", "IMAGE").AsOptional(), graph.Bare("mask", "MASK").AsOptional(),
			},
			Outputs: graph.Slots("MODEL"), Run: onModel(patchModel),
		},
		{
			Name: "USOStyleReference", Display: "Apply USO Style Reference", Module: module, Category: "model/patch/flux",
			Experimental: true, Phase: graph.PhaseText,
			Description: "Puts what a picture encoder sees of a picture in front of the text, for its style.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.Bare("model_patch", "MODEL_PATCH"),
				graph.Bare("clip_vision_output", "CLIP_VISION_OUTPUT"),
			},
			Outputs: graph.Slots("MODEL"), Run: onModel(styleReference),
		},
	}
}

// styleReference puts a picture's rows in front of those that the model already has.
func styleReference(c *graph.Call, m *value.Model) error {
	p := graph.Arg[*value.ModelPatch](c, "model_patch")
	return p.Show(c.Use(), m, graph.Arg[value.VisionOutput](c, "clip_vision_output"))
}

// patchModel appends a patch to those of the model. The node's mask is 1 where the picture is to be filled in, the
// reverse of what patches read. Mask and inpaint_image are ignored by patches without channels for them.
func patchModel(c *graph.Call, m *value.Model) error {
	p := graph.Arg[*value.ModelPatch](c, "model_patch")
	if err := p.Fits(m); err != nil {
		return err
	}
	var im, fill *picture.Image
	if c.Given("image") {
		im = c.Image("image")
	}
	if p.Fills() && c.Given("inpaint_image") {
		fill = c.Image("inpaint_image")
	}
	switch {
	case im == nil && fill == nil:
		return fault.Bad("image", "none is connected, and %s fills in no inpaint_image: connect one", p.Name)
	case im != nil && im.B != 1:
		return fault.Bad("image", "%d pictures, a patch takes one", im.B)
	case fill != nil && fill.B != 1:
		return fault.Bad("inpaint_image", "%d pictures, a patch takes one", fill.B)
	}
	ctl := &value.Control{
		Net: &p.ControlNet, Image: im, Fill: fill, VAE: c.VAE("vae"), End: 1,
		Strength: float32(c.Decimal("strength")),
	}
	if c.Given("mask") && p.Masked() {
		mask := graph.Arg[*picture.Mask](c, "mask")
		if mask.B != 1 {
			return fault.Bad("mask", "%d masks, a patch takes one", mask.B)
		}
		ctl.Mask = mask.Like(inverted(mask.Data)).Image()
	}
	m.Patches = append(slices.Clip(m.Patches), ctl)
	return nil
}
