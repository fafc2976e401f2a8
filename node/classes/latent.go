package classes

import (
	"patchbay/engine/safetensors"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

// latentClasses are the rows that make, save and load latents.
func latentClasses() []graph.Class {
	size := func(width int64, step int64) []graph.Input {
		side := func(name string) graph.Input {
			return graph.Int(name, "in pixels", width, 16, 16384, step)
		}
		return []graph.Input{
			side("width"), side("height"),
			graph.Int("batch_size", "pictures made at once", 1, 1, 4096, 0),
		}
	}
	return []graph.Class{
		{
			Name: "EmptyLatentImage", Display: "Empty Latent Image", Module: "nodes", Category: "model/latent",
			Aliases:     "empty, empty latent, new latent, create latent, blank latent, blank",
			Description: "Zeros with 4 channels; models with more channels widen them.",
			Inputs:      size(512, 8), Outputs: graph.Slots("LATENT"),
			Run: func(c *graph.Call) ([]any, error) { return emptyLatent(c, 4, 8, 0) },
		},
		{
			Name: "EmptySD3LatentImage", Module: "comfy_extras.nodes_sd3", Category: "model/latent/stable diffusion",
			NewStyle: true,
			Inputs:   size(1024, 16), Outputs: graph.Slots("LATENT"),
			Run: func(c *graph.Call) ([]any, error) { return emptyLatent(c, 16, 8, 0) },
		},
		{
			Name: "EmptyFlux2LatentImage", Display: "Empty Flux 2 Latent", Module: "comfy_extras.nodes_flux",
			Category: "model/latent/flux", NewStyle: true,
			Inputs: size(1024, 16), Outputs: graph.Slots("LATENT"),
			Run: func(c *graph.Call) ([]any, error) { return emptyLatent(c, 128, 16, 0) },
		},
		{
			Name: "EmptyQwenImageLayeredLatentImage", Display: "Empty Qwen Image Layered Latent",
			Module: "comfy_extras.nodes_qwen", Category: "model/latent/qwen", NewStyle: true,
			Description: "Zeros for a picture and the layers that it is taken apart into.",
			Inputs: []graph.Input{
				graph.Int("width", "in pixels", 640, 16, 16384, 16), graph.Int("height", "in pixels", 640, 16, 16384, 16),
				graph.Int("layers", "beside the whole picture", 3, 0, 16384, 1),
				graph.Int("batch_size", "pictures made at once", 1, 1, 4096, 0),
			},
			Outputs: graph.Slots("LATENT"),
			Run:     func(c *graph.Call) ([]any, error) { return emptyLatent(c, 16, 8, c.Whole("layers")+1) },
		},
		{
			Name: "SaveLatent", Display: "Save Latent", Module: "nodes", Category: "model/latent",
			Aliases: "export latent", Output: true, Outputs: []graph.Slot{{Name: "samples", Type: "LATENT"}},
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"),
				graph.Number("filename_prefix", "STRING", "", "default", "latents/ComfyUI"),
			},
			Hidden: []graph.Hidden{{Name: "prompt", Kind: "PROMPT"}, {Name: "extra_pnginfo", Kind: "EXTRA_PNGINFO"}},
			Check:  checkSavePrefix, Run: saveLatent,
		},
		{
			Name: "LoadLatent", Display: "Load Latent", Module: "nodes", Category: "model/latent",
			Aliases: "import latent, open latent",
			Inputs:  []graph.Input{graph.File("latent", files.KindInputLatent)}, Outputs: graph.Slots("LATENT"), Run: loadLatent,
			Own: []string{"latent"}, Check: checkFile("latent", "Invalid latent file: "), Change: fileChange("latent"),
		},
	}
}

// emptyLatent makes zeros [B, C, height/pixels, width/pixels], or [B, C, t, ...] of t layers, for which the sampler is
// not told the pixels; sizes between steps are cut, as ComfyUI does.
func emptyLatent(c *graph.Call, channels, pixels, t int) ([]any, error) {
	b, y, x := c.Whole("batch_size"), c.Whole("height")/pixels, c.Whole("width")/pixels
	if int64(b)*int64(channels)*int64(max(1, t))*int64(y)*int64(x) > value.MaxValues {
		return nil, fault.Bad("batch_size", "%d latents of %d x %d are more than this program holds (%d values)", b*max(1, t),
			x, y, value.MaxValues)
	}
	out := &value.Latent{Samples: parallel.NewLatent(b, channels, max(1, t)*y, x), Scale: pixels}
	if t > 0 {
		out.Samples.T, out.Scale = t, 0
	}
	return []any{out}, nil
}

// saveLatent writes the file that ComfyUI's SaveLatent writes: latent_tensor, an empty latent_format_version_0, the
// workflow in the metadata.
func saveLatent(c *graph.Call) ([]any, error) {
	l := graph.Arg[*value.Latent](c, "samples")
	s := l.Samples
	prefix, err := files.CheckPrefix(c.Str("filename_prefix"), 0, 0)
	if err != nil {
		return nil, err
	}
	meta := map[string]string{}
	for _, kv := range metadataOf(c) {
		meta[kv[0]] = kv[1]
	}
	data, err := encodeLatent(s, meta)
	if err != nil {
		return nil, err
	}
	c.Save(files.Output{Kind: "latents", Prefix: prefix, Type: "output", Ext: ".latent", Data: data})
	return []any{l}, nil
}

// loadLatent reads such a file; older files without the version mark hold values scaled by 0.18215.
func loadLatent(c *graph.Call) ([]any, error) {
	name := c.Str("latent")
	data, err := inputFile(c, "latent", name)
	if err != nil {
		return nil, err
	}
	f, err := safetensors.OpenBytes(data)
	if err != nil {
		return nil, fault.Bad("latent", "%s: %v", name, err)
	}
	e, ok := f.Entry("latent_tensor")
	if !ok || len(e.Shape) != 4 && len(e.Shape) != 5 {
		return nil, fault.Bad("latent", "%s holds no latent_tensor [B, C, Y, X] or [B, C, layers, Y, X]", name)
	}
	if e.Len() == 0 {
		return nil, fault.Bad("latent", "%s holds a latent_tensor of shape %v: want 1 or more of each side", name, e.Shape)
	}
	v, err := e.F32()
	if err != nil {
		return nil, fault.Bad("latent", "%s: %v", name, err)
	}
	if _, current := f.Entry("latent_format_version_0"); !current {
		for i := range v {
			v[i] *= 1 / float32(0.18215)
		}
	}
	if err := value.Finite(v); err != nil {
		return nil, fault.Bad("latent", "%s: %v", name, err)
	}
	samples, _ := parallel.LatentOf(e.Shape, v)
	return []any{&value.Latent{Samples: samples}}, nil
}
