package classes

import (
	"math"
	"slices"

	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// modelPatchClasses are the rows of model patches.
func modelPatchClasses() []graph.Class {
	const module = "comfy_extras.nodes_model_patch"
	return []graph.Class{
		{
			Name: "ModelPatchLoader", Display: "Load Model Patch", Module: module, Category: "model/loaders",
			Experimental: true, Heavy: graph.StageLoad, Inputs: []graph.Input{graph.File("name", files.KindModelPatch)},
			Outputs: graph.Slots("MODEL_PATCH"), Change: modelChange(files.KindModelPatch, "name"),
			Run: opened(files.KindModelPatch, "name", value.OpenModelPatch),
		},
		{
			Name: "QwenImageDiffsynthControlnet", Display: "Apply Qwen Image DiffSynth ControlNet", Module: module,
			Category: "model/patch/qwen", Experimental: true,
			Description: "Puts the layers of a patch behind the blocks of a model, which follow a picture.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.Bare("model_patch", "MODEL_PATCH"), graph.Bare("vae", "VAE"),
				graph.Bare("image", "IMAGE"), graph.Float("strength", "", 1, -10, 10, 0.01),
				graph.Bare("mask", "MASK").AsOptional(),
			},
			Outputs: graph.Slots("MODEL"), Run: patchModel,
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
			Outputs: graph.Slots("MODEL"), Run: patchModel,
		},
		{
			Name: "USOStyleReference", Display: "Apply USO Style Reference", Module: module, Category: "model/patch/flux",
			Experimental: true, Heavy: graph.StageText,
			Description: "Puts what a picture encoder sees of a picture in front of the text, for its style.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.Bare("model_patch", "MODEL_PATCH"),
				graph.Bare("clip_vision_output", "CLIP_VISION_OUTPUT"),
			},
			Outputs: graph.Slots("MODEL"), Run: styleReference,
		},
	}
}

// styleReference puts the rows of a picture in front of those that the model has.
func styleReference(c *graph.Call) ([]any, error) {
	m, p := *graph.Arg[*value.Model](c, "model"), graph.Arg[*value.ModelPatch](c, "model_patch")
	rows, err := p.Rows(c.Use(), graph.Arg[value.Seen](c, "clip_vision_output"))
	if err != nil {
		return nil, err
	}
	if !m.Spec.Prefix || rows.Cols != m.Spec.Width {
		return nil, fault.At(fault.CodeWrongFamily, "model_patch", "model_patch: %s makes rows of %d values in front of a "+
			"text, the %s model of width %d takes none of them", p.Name, rows.Cols, m.Spec.Family, m.Spec.Width)
	}
	rows.Rows, rows.Data = rows.Rows+m.Prefix.Rows, slices.Concat(rows.Data, m.Prefix.Data)
	m.Prefix = rows
	return []any{&m}, nil
}

// patchModel puts a patch behind those that the model has. A mask is 1 where the picture is to be filled in, patches
// read the opposite, and nets without channels for it and for what is filled in do not read them.
func patchModel(c *graph.Call) ([]any, error) {
	m, p := *graph.Arg[*value.Model](c, "model"), graph.Arg[*value.ModelPatch](c, "model_patch")
	strength := c.Decimal("strength")
	if err := p.Fits(&m); err != nil {
		return nil, err
	}
	var im, fill *picture.Image
	if c.Given("image") {
		im = graph.Arg[*picture.Image](c, "image")
	}
	if p.Fills() && c.Given("inpaint_image") {
		fill = graph.Arg[*picture.Image](c, "inpaint_image")
	}
	switch {
	case math.IsNaN(strength) || math.IsInf(strength, 0):
		return nil, fault.At(fault.CodeBadInput, "strength", "strength: %v is not a finite number, want -10 to 10", strength)
	case im == nil && fill == nil:
		return nil, fault.At(fault.CodeBadInput, "image", "image: none is connected, and %s fills in no inpaint_image: "+
			"connect one", p.Name)
	case im != nil && im.B != 1:
		return nil, fault.At(fault.CodeBadInput, "image", "image: %d pictures, a patch takes one", im.B)
	case fill != nil && fill.B != 1:
		return nil, fault.At(fault.CodeBadInput, "inpaint_image", "inpaint_image: %d pictures, a patch takes one", fill.B)
	}
	ctl := &value.Control{
		Net: &p.ControlNet, Image: im, Fill: fill, VAE: graph.Arg[*value.VAE](c, "vae"), Strength: float32(strength), End: 1,
	}
	if c.Given("mask") && p.Masked() {
		mask := graph.Arg[*picture.Mask](c, "mask")
		if mask.B != 1 {
			return nil, fault.At(fault.CodeBadInput, "mask", "mask: %d masks, a patch takes one", mask.B)
		}
		ctl.Mask = &picture.Image{B: 1, Y: mask.Y, X: mask.X, C: 1, Data: make([]float32, len(mask.Data))}
		for i, v := range mask.Data {
			ctl.Mask.Data[i] = 1 - v
		}
	}
	m.Patches = append(slices.Clip(m.Patches), ctl)
	return []any{&m}, nil
}
