package classes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// loadClasses are the rows that name model files. They read headers only.
func loadClasses() []graph.Class {
	device := graph.BareCombo("device", "default", "cpu").AsAdvanced().AsOptional()
	return []graph.Class{
		{
			Name: "UNETLoader", Display: "Load Diffusion Model", Module: "nodes", Category: "model/loaders",
			Heavy: graph.StageLoad,
			Inputs: []graph.Input{
				graph.File("unet_name", files.KindDiffusion),
				graph.BareCombo("weight_dtype", "default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2").AsLater().AsAdvanced(),
			},
			Outputs: graph.Slots("MODEL"), Check: checkPrecision, Run: opened(files.KindDiffusion, "unet_name", value.OpenModel),
			Change: modelChange(files.KindDiffusion, "unet_name"),
		},
		{
			Name: "VAELoader", Display: "Load VAE", Module: "nodes", Category: "model/loaders", Heavy: graph.StageLoad,
			Inputs:  []graph.Input{{Name: "vae_name", Type: "COMBO", Files: files.KindVAE, Choices: []string{value.PixelSpace}}},
			Outputs: graph.Slots("VAE"), Run: loadVAE, Change: modelChange(files.KindVAE, "vae_name"),
		},
		{
			Name: "CheckpointLoaderSimple", Display: "Load Checkpoint", Module: "nodes", Category: "model/loaders",
			Aliases:     "load model, checkpoint, model loader, load checkpoint, ckpt, model",
			Heavy:       graph.StageLoad,
			Description: "Loads diffusion model, text encoders and VAE from one file.",
			Inputs:      []graph.Input{graph.File("ckpt_name", files.KindCheckpoint).With()},
			Outputs:     graph.Slots("MODEL", "CLIP", "VAE"), Run: loadCheckpoint,
			Change: modelChange(files.KindCheckpoint, "ckpt_name"),
		},
		{
			Name: "CLIPLoader", Display: "Load CLIP", Module: "nodes", Category: "model/loaders", Heavy: graph.StageLoad,
			Inputs:  []graph.Input{graph.File("clip_name", files.KindText), clipTypeInput().AsLater(), device},
			Outputs: graph.Slots("CLIP"), Check: checkClipType,
			Run:    func(c *graph.Call) ([]any, error) { return loadCLIP(c, c.Str("type"), "clip_name") },
			Change: modelChange(files.KindText, "clip_name"),
		},
		{
			Name: "DualCLIPLoader", Display: "Load CLIP (Dual)", Module: "nodes", Category: "model/loaders",
			Heavy: graph.StageLoad,
			Inputs: []graph.Input{
				graph.File("clip_name1", files.KindText), graph.File("clip_name2", files.KindText),
				dualClipTypeInput(), device,
			},
			Outputs: graph.Slots("CLIP"), Check: checkClipType,
			Run:    func(c *graph.Call) ([]any, error) { return loadCLIP(c, c.Str("type"), "clip_name1", "clip_name2") },
			Change: modelChange(files.KindText, "clip_name1", "clip_name2"),
		},
		{
			Name: "TripleCLIPLoader", Display: "Load CLIP (Triple)", Module: "comfy_extras.nodes_sd3",
			Category: "model/loaders", NewStyle: true,
			Heavy:       graph.StageLoad,
			Description: "Loads the three text encoders of SD3: CLIP-L, CLIP-G and T5, in any order.",
			Inputs:      []graph.Input{encoderIn("clip_name1"), encoderIn("clip_name2"), encoderIn("clip_name3")},
			Outputs:     graph.Slots("CLIP"),
			Run: func(c *graph.Call) ([]any, error) {
				return loadCLIP(c, "sd3", "clip_name1", "clip_name2", "clip_name3")
			},
			Change: modelChange(files.KindText, "clip_name1", "clip_name2", "clip_name3"),
		},
	}
}

// encoderIn is a choice of text encoder files in a class of the newer kind.
func encoderIn(name string) graph.Input { return graph.File(name, files.KindText).With() }

// clipTypeInput and dualClipTypeInput are the types that ComfyUI's loaders of one and of two encoders offer.
func clipTypeInput() graph.Input {
	return graph.BareCombo("type", "stable_diffusion", "stable_cascade", "sd3", "stable_audio", "mochi", "ltxv",
		"pixart", "cosmos",
		"lumina2", "wan", "hidream", "chroma", "ace", "omnigen2", "qwen_image", "hunyuan_image", "flux2", "ovis",
		"longcat_image", "cogvideox", "lens", "pixeldit", "ideogram4", "boogu", "krea2", "joyimage", "mage", "minimax")
}

func dualClipTypeInput() graph.Input {
	return graph.BareCombo("type", "sdxl", "sd3", "flux", "hunyuan_video", "hidream", "hunyuan_image", "hunyuan_video_15",
		"kandinsky5", "kandinsky5_image", "ltxv", "newbie", "ace")
}

// modelChange makes the headers of model files part of the cache signature, so that a file that was replaced is read
// again.
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

// fromFile lets f look at the header of the model file that an input names; errors name the input.
func fromFile(c *graph.Call, kind, field string, f func(files.Header) error) error {
	return c.Roots().Header(kind, field, c.Str(field), wantsWide(c), f)
}

// opened runs a class that gives what open makes of the model file that an input names.
func opened[T any](kind, field string, open func(files.Header) (T, error)) func(*graph.Call) ([]any, error) {
	return func(c *graph.Call) ([]any, error) {
		var out T
		err := fromFile(c, kind, field, func(h files.Header) (err error) {
			out, err = open(h)
			return err
		})
		return []any{out}, err
	}
}

// checkPrecision refuses weight types that would round the weights again: weights are computed in the precision of
// their file. A type that all weights of the file have already changes nothing. What cannot be read is left to the
// loader's own words.
func checkPrecision(_ *graph.Job, roots *files.Roots, in *pyjson.Object) (field, text string) {
	want, narrow := map[string]engine.DType{
		"fp8_e4m3fn": engine.F8E4M3, "fp8_e4m3fn_fast": engine.F8E4M3, "fp8_e5m2": engine.F8E5M2,
	}[in.Text("weight_dtype")]
	if !narrow {
		return "", ""
	}
	other := ""
	err := roots.Header(files.KindDiffusion, "unet_name", in.Text("unet_name"), false, func(h files.Header) error {
		set := h.Weights.Set()
		for _, n := range set.Names() {
			if s, _ := set.Get(n); s.DType != want {
				other = fmt.Sprintf("%s of the file is %s", n, s.DType)
				return nil
			}
		}
		return nil
	})
	if err != nil || other == "" {
		return "", ""
	}
	return "weight_dtype", fmt.Sprintf("%s would round the weights (%s), which is not supported: weights keep the "+
		"type of their file; use \"default\" (with a file of that type to save memory)", in.Text("weight_dtype"), other)
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
		return err
	})
	return out, err
}

// loadCLIP opens the text encoders of a type; fields name the files.
func loadCLIP(c *graph.Call, kind string, fields ...string) ([]any, error) {
	clip := &value.Clip{Type: kind}
	for _, field := range fields {
		if err := fromFile(c, files.KindText, field, clip.Add); err != nil {
			return nil, err
		}
	}
	return []any{clip}, clip.Check(c.Class.Name, "type")
}

// checkClipType refuses types that cannot be encoded before anything runs.
func checkClipType(_ *graph.Job, _ *files.Roots, in *pyjson.Object) (field, text string) {
	name, ok := in.At("type").(string)
	all := models.TextTypes()
	if _, known := all[name]; !ok || known {
		return "", ""
	}
	return "type", fmt.Sprintf("text encoders of type %s are not supported (supported: %s)", name,
		strings.Join(slices.Sorted(maps.Keys(all)), ", "))
}
