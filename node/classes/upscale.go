package classes

import (
	"patchbay/models/upscale"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// upscaleClasses are the rows of networks that make pictures larger.
func upscaleClasses() []graph.Class {
	const module = "comfy_extras.nodes_upscale_model"
	return []graph.Class{
		{
			Name: "UpscaleModelLoader", Display: "Load Upscale Model", Module: module, Category: "model/loaders",
			NewStyle: true, Heavy: graph.StageLoad, Inputs: []graph.Input{graph.File("model_name", files.KindUpscale).With()},
			Outputs: graph.Slots("UPSCALE_MODEL"), Change: modelChange(files.KindUpscale, "model_name"),
			Run: opened(files.KindUpscale, "model_name", value.OpenUpscaler),
		},
		{
			Name: "ImageUpscaleWithModel", Display: "Upscale Image (using Model)", Module: module,
			Category: "image/upscaling", NewStyle: true, Heavy: graph.StageVAE,
			Aliases: "upscale, upscaler, upsc, enlarge image, super resolution, hires, superres, increase resolution",
			Inputs: []graph.Input{
				graph.Link("upscale_model", "UPSCALE_MODEL", ""), graph.Link("image", "IMAGE", ""),
			},
			Outputs: graph.Slots("IMAGE"), Run: upscaleImage,
		},
	}
}

func upscaleImage(c *graph.Call) ([]any, error) {
	net, im := graph.Arg[*value.Upscaler](c, "upscale_model"), graph.Arg[*picture.Image](c, "image")
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
