package classes

import (
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/upscale"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// styleClasses returns the classes that condition on a picture beside the text (Redux), and those of upscale models.
func styleClasses() []graph.Class {
	const module = "comfy_extras.nodes_upscale_model"
	return []graph.Class{
		loader(graph.Class{
			Name: "CLIPVisionLoader", Display: "Load CLIP Vision", Outputs: graph.Slots("CLIP_VISION"),
		}, files.KindClipVision, "clip_name", value.OpenVisionEncoder),
		{
			Name: "CLIPVisionEncode", Display: "CLIP Vision Encode", Category: "model/conditioning", Phase: graph.PhaseText,
			Inputs: []graph.Input{
				graph.Bare("clip_vision", "CLIP_VISION"), graph.Bare("image", "IMAGE"), graph.BareCombo("crop", "center", "none"),
			},
			Outputs: graph.Slots("CLIP_VISION_OUTPUT"), Run: func(c *graph.Call) ([]any, error) {
				encoder := graph.Arg[*value.VisionEncoder](c, "clip_vision")
				out, err := encoder.See(c.Use(), c.Image("image"), c.Str("crop") == "center")
				return []any{out}, err
			},
		},
		loader(graph.Class{
			Name: "StyleModelLoader", Display: "Load Style Model", Outputs: graph.Slots("STYLE_MODEL"),
		}, files.KindStyle, "style_model_name", value.OpenStyle),
		{
			Name: "StyleModelApply", Display: "Apply Style Model", Category: "model/conditioning", Aliases: "style transfer",
			Phase: graph.PhaseText, Description: "Puts what was seen in pictures behind the text.",
			Inputs: []graph.Input{
				graph.Bare("conditioning", "CONDITIONING"), graph.Bare("style_model", "STYLE_MODEL"),
				graph.Bare("clip_vision_output", "CLIP_VISION_OUTPUT"), graph.Float("strength", "", 1, 0, 10, 0.001),
				graph.BareCombo("strength_type", "multiply", "attn_bias"),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: applyStyle,
		},
		loader(graph.Class{
			Name: "UpscaleModelLoader", Display: "Load Upscale Model", Module: module, Outputs: graph.Slots("UPSCALE_MODEL"),
		}, files.KindUpscale, "model_name", value.OpenUpscaler),
		{
			Name: "ImageUpscaleWithModel", Display: "Upscale Image (using Model)", Module: module, Category: "image/upscaling",
			Aliases: "upscale, upscaler, upsc, enlarge image, super resolution, hires, superres, increase resolution",
			Phase:   graph.PhaseVAE,
			Inputs:  []graph.Input{graph.Link("upscale_model", "UPSCALE_MODEL", ""), graph.Link("image", "IMAGE", "")},
			Outputs: graph.Slots("IMAGE"), Run: upscaleImage,
		},
	}
}

// applyStyle appends the rows of a style to the text: scaled by strength, or, for attn_bias, with log(strength) as a
// bias on attention to them, which ComfyUI keeps in f16. A strength of 0 gives NaN in ComfyUI; here the logarithm is
// clamped to -65504, the lowest finite f16.
func applyStyle(c *graph.Call) ([]any, error) {
	list, style := c.Conditioning("conditioning"), graph.Arg[*value.Style](c, "style_model")
	strength, bias := float32(c.Decimal("strength")), float32(0)
	if c.Str("strength_type") == "attn_bias" {
		log := max(math.Log(float64(strength)), -65504)
		strength, bias = 1, engine.F32FromF16(engine.F16FromF32(float32(log)))
	}
	rows, err := style.Rows(c.Use(), graph.Arg[value.VisionOutput](c, "clip_vision_output"))
	if err != nil {
		return nil, err
	}
	for i := range rows.Data {
		rows.Data[i] *= strength
	}
	out := list.Each(func(e *value.Cond) {
		if e.Context.Cols != rows.Cols {
			err = fault.Family("style_model", "its rows have %d values, those of the text %d: load a style model of the "+
				"model's family", rows.Cols, e.Context.Cols)
			return
		}
		at := dit.Range{Start: e.Context.Rows, End: e.Context.Rows + rows.Rows}
		e.Context.Rows, e.Context.Data = at.End, slices.Concat(e.Context.Data, rows.Data)
		if bias != 0 {
			e.Biases = append(slices.Clone(e.Biases), dit.Bias{Rows: at, Value: bias})
		}
	})
	return []any{out}, err
}

func upscaleImage(c *graph.Call) ([]any, error) {
	net, im := graph.Arg[*value.Upscaler](c, "upscale_model"), c.Image("image")
	if im.C != upscale.Channels {
		return nil, fault.Bad("image", "%d channels, upscale models read %d: SplitImageWithAlpha takes alpha off", im.C,
			upscale.Channels)
	}
	s := net.Config.Scale
	if err := checkSize("image", im.B, s*im.Y, s*im.X, im.C); err != nil {
		return nil, err
	}
	out, err := net.Upscale(c.Use(), im, func(tiles, total int) {
		c.Emit(graph.Event{Type: "progress", Data: map[string]any{"value": tiles, "max": total, "node": c.ID}})
	})
	return []any{out}, err
}
