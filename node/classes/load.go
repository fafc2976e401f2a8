package classes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/lora"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// loadClasses returns the classes that open model files, of which they read only the headers, and those that add
// low-rank adapters to handles. Nothing is merged: handles with different adapters share the packed weights.
func loadClasses() []graph.Class {
	device := graph.BareCombo("device", "default", "cpu").AsAdvanced().AsOptional()
	strength := func(name, tip string) graph.Input {
		return graph.Float(name, tip, 1, -100, 100, 0.01)
	}
	const words = "lora, load lora, apply lora, lora loader, lora model"
	return []graph.Class{
		reading(graph.Class{
			Name: "UNETLoader", Display: "Load Diffusion Model", Outputs: graph.Slots("MODEL"), Check: checkPrecision,
			Run: openUNET, Inputs: []graph.Input{
				graph.File("unet_name", files.KindDiffusion),
				graph.BareCombo("weight_dtype", "default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2").AsLater().AsAdvanced(),
			},
		}, files.KindDiffusion, "unet_name"),
		reading(graph.Class{
			Name: "VAELoader", Display: "Load VAE", Outputs: graph.Slots("VAE"), Run: loadVAE,
			Inputs: []graph.Input{{Name: "vae_name", Type: "COMBO", Files: files.KindVAE, Choices: []string{value.PixelSpace}}},
		}, files.KindVAE, "vae_name"),
		reading(graph.Class{
			Name: "CheckpointLoaderSimple", Display: "Load Checkpoint",
			Aliases:     "load model, checkpoint, model loader, load checkpoint, ckpt, model",
			Description: "Loads diffusion model, text encoders and VAE from one file.",
			Inputs:      []graph.Input{graph.File("ckpt_name", files.KindCheckpoint).With()},
			Outputs:     graph.Slots("MODEL", "CLIP", "VAE"), Run: loadCheckpoint,
		}, files.KindCheckpoint, "ckpt_name"),
		clipLoader(graph.Class{
			Name: "CLIPLoader", Display: "Load CLIP", Inputs: []graph.Input{clipTypeInput().AsLater(), device},
		}, "", "clip_name"),
		clipLoader(graph.Class{
			Name: "DualCLIPLoader", Display: "Load CLIP (Dual)", Inputs: []graph.Input{dualClipTypeInput(), device},
		}, "", "clip_name1", "clip_name2"),
		clipLoader(graph.Class{
			Name: "TripleCLIPLoader", Display: "Load CLIP (Triple)", Module: "comfy_extras.nodes_sd3",
			Description: "Loads the three text encoders of SD3: CLIP-L, CLIP-G and T5, in any order.",
		}, "sd3", "clip_name1", "clip_name2", "clip_name3"),
		ltxTextLoader(),
		reading(graph.Class{
			Name: "LoraLoader", Display: "Load LoRA (Model and CLIP)", Aliases: words, Essential: "Image Generation",
			Description: "Adds the low-rank adapters of a LoRA file to the diffusion model and to the text encoders. " +
				"Several can follow each other.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", "the diffusion model that is adapted"),
				graph.Link("clip", "CLIP", "the text encoders that are adapted"), graph.File("lora_name", files.KindLora).With(),
				strength("strength_model", "how much of it the diffusion model gets; may be negative"),
				strength("strength_clip", "how much of it the text encoders get; may be negative"),
			},
			Outputs: graph.Slots("MODEL", "CLIP"), Run: func(c *graph.Call) ([]any, error) {
				m, clip, err := withLora(c, graph.Arg[*value.Clip](c, "clip"), c.Float("strength_clip"))
				return []any{m, clip}, err
			},
		}, files.KindLora, "lora_name"),
		reading(graph.Class{
			Name: "LoraLoaderModelOnly", Display: "Load LoRA", Aliases: words, Essential: "Image Generation",
			Description: "Adds the low-rank adapters of a LoRA file to the diffusion model.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.File("lora_name", files.KindLora), strength("strength_model", ""),
			},
			Outputs: graph.Slots("MODEL"), Run: func(c *graph.Call) ([]any, error) {
				m, _, err := withLora(c, nil, 0)
				return []any{m}, err
			},
		}, files.KindLora, "lora_name"),
	}
}

// reading completes a class that reads model files of a kind, named by the inputs fields.
func reading(row graph.Class, kind string, fields ...string) graph.Class {
	row.Category, row.Phase = cmp.Or(row.Category, "model/loaders"), graph.PhaseLoad
	row.Change = modelChange(kind, fields...)
	if row.Inputs == nil {
		row.Inputs = []graph.Input{graph.File(fields[0], kind)}
	}
	return row
}

// loader completes a class whose output is what open returns for the file that an input names.
func loader[T any](row graph.Class, kind, field string, open func(files.Header) (T, error)) graph.Class {
	row.Run = opened(kind, field, open)
	return reading(row, kind, field)
}

// clipLoader completes a class that opens text encoders. Its file inputs go in front of those of the row. textType is
// "" if there is an input for it.
func clipLoader(row graph.Class, textType string, fields ...string) graph.Class {
	var in []graph.Input
	for _, field := range fields {
		in = append(in, graph.File(field, files.KindText))
	}
	if textType == "" {
		row.Check = checkClipType
	}
	row.Inputs, row.Outputs = append(in, row.Inputs...), graph.Slots("CLIP")
	row.Run = func(c *graph.Call) ([]any, error) {
		clip := &value.Clip{Type: textType}
		if textType == "" {
			clip.Type = c.Str("type")
		}
		for _, field := range fields {
			if err := fromFile(c, files.KindText, field, clip.Add); err != nil {
				return nil, err
			}
		}
		warnSpare(c, clip.Name, clip)
		return []any{clip}, clip.Check(c.Class.Name, "type")
	}
	return reading(row, files.KindText, fields...)
}

// clipTypeInput and dualClipTypeInput return the types that ComfyUI's loaders for one and for two encoders offer.
func clipTypeInput() graph.Input {
	return graph.BareCombo("type", "stable_diffusion", "stable_cascade", "sd3", "stable_audio", "mochi", "ltxv",
		"pixart", "cosmos",
		"lumina2", "wan", "hidream", "chroma", "ace", "omnigen2", "qwen_image", "hunyuan_image", "flux2", "ovis",
		"longcat_image", "cogvideox", "lens", "pixeldit", "ideogram4", "boogu", "krea2", "joyimage", "mage", "minimax",
		"flux3")
}

func dualClipTypeInput() graph.Input {
	return graph.BareCombo("type", "sdxl", "sd3", "flux", "hunyuan_video", "hidream", "hunyuan_image", "hunyuan_video_15",
		"kandinsky5", "kandinsky5_image", "ltxv", "newbie", "ace")
}

// modelChange makes the headers of model files part of the cache signature, so that a replaced file is read again.
func modelChange(kind string, fields ...string) func(*graph.Call) (string, error) {
	return func(c *graph.Call) (text string, err error) {
		for _, field := range fields {
			name, ok := c.Raw(field).(string)
			if !ok || (kind == files.KindVAE && name == value.PixelSpace) {
				continue
			}
			err = c.Roots().Header(kind, field, name, wantsWide(c), func(h files.Header) error {
				text += fmt.Sprintf("%s %d\n", h.Key(), h.Size)
				return nil
			})
			if err != nil {
				return "", err
			}
		}
		return text, nil
	}
}

// fromFile calls f with the header of the model file that an input names. Errors name the input.
func fromFile(c *graph.Call, kind, field string, f func(files.Header) error) error {
	return c.Roots().Header(kind, field, c.Str(field), wantsWide(c), f)
}

// opened returns the run function of a class whose output is what open returns for the model file that an input names.
func opened[T any](kind, field string, open func(files.Header) (T, error)) func(*graph.Call) ([]any, error) {
	return func(c *graph.Call) ([]any, error) {
		var out T
		err := fromFile(c, kind, field, func(h files.Header) (err error) {
			out, err = open(h)
			if u, ok := any(out).(spare); ok && err == nil {
				warnSpare(c, h.Name, u)
			}
			return err
		})
		return []any{out}, err
	}
}

// precisions are the types that weight_dtype rounds to. The fast one differs from the other only on cards that multiply
// fp8, where ComfyUI rounds activations too.
func precisions() map[string]engine.DType {
	return map[string]engine.DType{
		"fp8_e4m3fn": engine.F8E4M3, "fp8_e4m3fn_fast": engine.F8E4M3, "fp8_e5m2": engine.F8E5M2,
	}
}

// checkPrecision rejects rounding weights that are quantized already. Unreadable files pass, as the loader reports them
// better.
func checkPrecision(_ *graph.Job, roots *files.Roots, in *pyjson.Object) (field, text string) {
	if _, narrow := precisions()[in.Text("weight_dtype")]; !narrow {
		return "", ""
	}
	other := ""
	err := roots.Header(files.KindDiffusion, "unet_name", in.Text("unet_name"), false, func(h files.Header) error {
		set := h.Weights.Set()
		for _, n := range set.Names() {
			if s, _ := set.Get(n); !s.Plain() {
				other = n
				return nil
			}
		}
		return nil
	})
	if err != nil || other == "" {
		return "", ""
	}
	return "weight_dtype", fmt.Sprintf("%s would round weights that are quantised already (%s): use \"default\"",
		in.Text("weight_dtype"), other)
}

// openUNET opens a diffusion model, rounded as weight_dtype says.
func openUNET(c *graph.Call) ([]any, error) {
	return opened(files.KindDiffusion, "unet_name", func(h files.Header) (*value.Model, error) {
		if d, narrow := precisions()[c.Str("weight_dtype")]; narrow {
			h.Weights.Round(d)
			h.Rounded, h.Size = d, h.Weights.Size()
		}
		return value.OpenModel(h)
	})(c)
}

func loadVAE(c *graph.Call) ([]any, error) {
	if c.Str("vae_name") == value.PixelSpace {
		return []any{&value.VAE{Name: value.PixelSpace, Key: value.PixelSpace, Channels: 3}}, nil
	}
	return opened(files.KindVAE, "vae_name", value.OpenVAE)(c)
}

func loadCheckpoint(c *graph.Call) (out []any, err error) {
	err = fromFile(c, files.KindCheckpoint, "ckpt_name", func(h files.Header) error {
		m, err := value.OpenModel(h)
		if err != nil {
			return err
		}
		clip, err := value.OpenCheckpointCLIP(h, m.Spec.Family)
		if err != nil {
			return err
		}
		v, err := value.OpenVAE(h)
		out = []any{m, clip, v}
		if err == nil {
			warnSpare(c, h.Name, m, clip, v)
		}
		return err
	})
	return out, err
}

// checkClipType rejects unsupported text types before anything runs.
func checkClipType(_ *graph.Job, _ *files.Roots, in *pyjson.Object) (field, text string) {
	name, ok := in.At("type").(string)
	all := models.TextTypes()
	if _, known := all[name]; !ok || known {
		return "", ""
	}
	return "type", fmt.Sprintf("text encoders of type %s are not supported (supported: %s)", name,
		strings.Join(slices.Sorted(maps.Keys(all)), ", "))
}

// ggufClasses returns the loaders of the custom node package ComfyUI-GGUF, for supported model families. The stock
// loaders open the same files; these names let existing workflows run unchanged.
func ggufClasses() []graph.Class {
	const module, category = "custom_nodes.ComfyUI-GGUF", "bootleg"
	precision := func(name, tip string) graph.Input {
		return graph.Combo(name, tip, "default", "target", "float32", "float16", "bfloat16").With("default", "default")
	}
	return []graph.Class{
		loader(graph.Class{
			Name: "UnetLoaderGGUF", Display: "Unet Loader (GGUF)", Module: module, Category: category,
			Outputs: graph.Slots("MODEL"),
		}, files.KindGGUF, "unet_name", value.OpenModel),
		loader(graph.Class{
			Name: "UnetLoaderGGUFAdvanced", Display: "Unet Loader (GGUF/Advanced)", Module: module, Category: category,
			Inputs: []graph.Input{
				graph.File("unet_name", files.KindGGUF), precision("dequant_dtype", "type that quantised weights are widened to"),
				precision("patch_dtype", "adapters keep the type of their file"),
				graph.Bool("patch_on_device", "adapters are always on the device", false),
			},
			Outputs: graph.Slots("MODEL"), Check: checkWidened,
		}, files.KindGGUF, "unet_name", value.OpenModel),
		clipLoader(graph.Class{
			Name: "CLIPLoaderGGUF", Display: "CLIPLoader (GGUF)", Module: module, Category: category,
			Inputs: []graph.Input{clipTypeInput()},
		}, "", "clip_name"),
		clipLoader(graph.Class{
			Name: "DualCLIPLoaderGGUF", Display: "DualCLIPLoader (GGUF)", Module: module, Category: category,
			Inputs: []graph.Input{dualClipTypeInput()},
		}, "", "clip_name1", "clip_name2"),
	}
}

// wantsWide reports whether the node asks for quantized weights to be widened to f32 instead of bf16.
func wantsWide(c *graph.Call) bool { return c.Raw("dequant_dtype") == "float32" }

// checkWidened rejects a type that weights cannot be widened to.
func checkWidened(_ *graph.Job, _ *files.Roots, in *pyjson.Object) (field, text string) {
	if in.At("dequant_dtype") == "float16" {
		return "dequant_dtype", `float16 is not supported: quantised weights are widened to bfloat16 ("default", ` +
			`"target") or "float32"`
	}
	return "", ""
}

// withLora returns copies of the handles with the adapters of the file named by the input lora_name. A strength of 0
// leaves a handle as it is; if both are 0, the file is not even opened (ComfyUI nodes.py, LoraLoader). clip may be nil.
func withLora(c *graph.Call, clip *value.Clip, onClip float64) (*value.Model, *value.Clip, error) {
	m, onModel := c.Model("model"), c.Float("strength_model")
	if onModel == 0 && onClip == 0 {
		return m, clip, nil
	}
	keys, err := value.LoraKeys(m, clip)
	if err != nil {
		return nil, nil, err
	}
	err = fromFile(c, files.KindLora, "lora_name", func(h files.Header) error {
		set := h.Weights.Set()
		found, err := lora.Match(set, keys)
		if err != nil {
			return err
		}
		warnUnused(c, found.Unused, len(set.Names()), clip == nil)
		clip = clip.WithLora(h, onClip, found)
		m, err = m.WithLora(h, onModel, found)
		return err
	})
	return m, clip, err
}

// warnUnused warns of tensors that match nothing, of a file of that many tensors, except for those of text encoders if
// modelOnly.
func warnUnused(c *graph.Call, names []string, of int, modelOnly bool) {
	var odd []string
	for _, n := range names {
		if !modelOnly || !strings.HasPrefix(n, "lora_te") && !strings.HasPrefix(n, "text_encoder") {
			odd = append(odd, n)
		}
	}
	if len(odd) > 0 {
		c.Warn("node %s: %d of %d tensors of %s fit; %d fit nothing here and are not used: %s", c.ID, of-len(names), of,
			c.Str("lora_name"), len(odd), fault.List(odd))
	}
}

// spare is a handle that knows which tensors in its file the model does not know.
type spare interface{ Unused() []string }

// warnSpare warns of tensors in a file that belong to none of the models that are read from it, as ComfyUI does.
func warnSpare(c *graph.Call, file string, of ...spare) {
	var names []string
	for _, u := range of {
		names = append(names, u.Unused()...)
	}
	if len(names) > 0 {
		c.Warn("node %s: %d tensors of %s are unknown and not used: %s", c.ID, len(names), file, fault.List(names))
	}
}
