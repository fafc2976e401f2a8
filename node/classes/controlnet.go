package classes

import (
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// unionTypes lists the types of union nets in the order of their rows (ComfyUI comfy/cldm/control_types.py).
func unionTypes() []string {
	return []string{
		"openpose", "depth", "hed/pidi/scribble/ted", "canny/lineart/anime_lineart/mlsd", "normal", "segment", "tile",
		"repaint",
	}
}

// controlNetClasses returns the classes that load and apply control nets.
func controlNetClasses() []graph.Class {
	const category = "model/conditioning/controlnet"
	link := func(name, kind string) graph.Input { return graph.Link(name, kind, "") }
	part := []graph.Input{
		graph.Float("strength", "", 1, 0, 10, 0.01), graph.Float("start_percent", "", 0, 0, 1, 0.001),
		graph.Float("end_percent", "", 1, 0, 1, 0.001),
	}
	advancedPart := []graph.Input{part[0], part[1].AsAdvanced(), part[2].AsAdvanced()}
	sides := []graph.Slot{{Name: "positive", Type: "CONDITIONING"}, {Name: "negative", Type: "CONDITIONING"}}
	return []graph.Class{
		loader(graph.Class{
			Name: "ControlNetLoader", Display: "Load ControlNet Model", Outputs: graph.Slots("CONTROL_NET"),
			Aliases: "controlnet, control net, cn, load controlnet, controlnet loader",
		}, files.KindControl, "control_net_name", value.OpenControlNet),
		{
			Name: "ControlNetApplyAdvanced", Display: "Apply ControlNet", Category: category,
			Aliases: "controlnet, apply controlnet, use controlnet, control net",
			Inputs: append(append([]graph.Input{
				graph.Bare("positive", "CONDITIONING"), graph.Bare("negative", "CONDITIONING"),
				graph.Bare("control_net", "CONTROL_NET"), graph.Bare("image", "IMAGE"),
			}, part...), graph.Bare("vae", "VAE").AsOptional()),
			Outputs: sides, Run: applyControlNet,
		},
		{
			Name: "ControlNetApplySD3", Display: "Apply Controlnet with VAE", Module: "comfy_extras.nodes_sd3",
			Category: category, Deprecated: true,
			Inputs: append([]graph.Input{
				link("positive", "CONDITIONING"), link("negative", "CONDITIONING"), link("control_net", "CONTROL_NET"),
				link("vae", "VAE"), link("image", "IMAGE"),
			}, part...),
			Outputs: sides, Run: applyControlNet,
		},
		{
			Name: "ControlNetInpaintingAliMamaApply", Display: "Apply ControlNet Inpainting (AliMama)",
			Module: "comfy_extras.nodes_controlnet", Category: category, Aliases: "masked controlnet",
			Inputs: append([]graph.Input{
				link("positive", "CONDITIONING"), link("negative", "CONDITIONING"), link("control_net", "CONTROL_NET"),
				link("vae", "VAE"), link("image", "IMAGE"), link("mask", "MASK"),
			}, advancedPart...),
			Outputs: sides, Run: applyControlNet,
		},
		{
			Name: "SetUnionControlNetType", Display: "Set Union ControlNet Type", Module: "comfy_extras.nodes_controlnet",
			Category: category, Aliases: "set controlnet type, union controlnet type",
			Inputs: []graph.Input{
				link("control_net", "CONTROL_NET"), graph.Combo("type", "", append([]string{"auto"}, unionTypes()...)...),
			},
			Outputs: graph.Slots("CONTROL_NET"), Run: setUnionType,
		},
	}
}

// setUnionType selects the type of a union net. Other nets ignore it, as in ComfyUI.
func setUnionType(c *graph.Call) ([]any, error) {
	n := *graph.Arg[*value.ControlNet](c, "control_net")
	n.Type = 0
	if row := slices.Index(unionTypes(), c.Str("type")) + 1; n.Modes > 0 {
		if row > n.Modes {
			return nil, fault.Bad("type", "%s is row %d, %s has types for rows 0 to %d", c.Str("type"),
				row-1, n.Name, n.Modes-1)
		}
		n.Type = row
	}
	return []any{&n}, nil
}

// applyControlNet appends a net to those of both conditionings.
func applyControlNet(c *graph.Call) ([]any, error) {
	positive, negative := c.Conditioning("positive"), c.Conditioning("negative")
	strength := c.Decimal("strength")
	if strength == 0 {
		return []any{positive, negative}, nil
	}
	ctl := value.Control{
		Net: graph.Arg[*value.ControlNet](c, "control_net"), Image: c.Image("image"),
		Strength: float32(strength), Start: c.Decimal("start_percent"), End: c.Decimal("end_percent"),
	}
	if c.Given("vae") {
		ctl.VAE = c.VAE("vae")
	}
	if c.Given("mask") && ctl.Net.Masked() {
		if err := blackenMasked(&ctl, graph.Arg[*picture.Mask](c, "mask")); err != nil {
			return nil, err
		}
	}
	add := func(e *value.Cond) { e.Controls = append(slices.Clip(e.Controls), &ctl) }
	return []any{positive.Each(add), negative.Each(add)}, nil
}

// blackenMasked blackens the part of the hint that the mask marks to be filled in (ComfyUI
// comfy_extras/nodes_controlnet.py).
func blackenMasked(ctl *value.Control, mask *picture.Mask) error {
	if mask.B != 1 && ctl.Image.B != 1 && mask.B != ctl.Image.B {
		return fault.Bad("mask", "%d masks for %d pictures, want one of either, or as many", mask.B,
			ctl.Image.B)
	}
	ctl.Mask = mask.Like(inverted(mask.Data)).Image()
	im := *ctl.Image
	keep, err := resizedImage(ctl.Mask, im.X, im.Y, resample.Bilinear, resample.CropCenter, "mask")
	if err != nil {
		return err
	}
	im.B = max(im.B, mask.B)
	n := im.B * im.Y * im.X * im.C
	im.Data = slices.Repeat(im.Data, n/len(im.Data))
	for i := range im.Data {
		im.Data[i] *= float32(math.RoundToEven(float64(keep.Data[i/im.C%len(keep.Data)])))
	}
	ctl.Image = &im
	return nil
}

// hints returns a function that encodes hints of control nets, resized to the latent's size in pixels and
// center-cropped. Masks are resized to the latent's size in the same way.
func hints(c *graph.Call) value.HintFunc {
	return func(ctl *value.Control, n, y, x int) (hint value.Hint, err error) {
		method, masks, crop := resample.NearestExact, resample.NearestExact, resample.CropCenter
		switch {
		case ctl.Net.Fills():
			method, masks = resample.Area, resample.Nearest
		case ctl.Net.Patch: // masks of these are not cropped
			method, masks, crop = resample.Area, resample.Bilinear, resample.CropDisabled
		}
		some := ctl.Image
		if some != nil {
			some = some.Items(0, n)
		}
		if ctl.Mask != nil {
			small, err := resizedImage(ctl.Mask, x, y, masks, crop, "mask")
			if err != nil {
				return hint, err
			}
			hint.Mask = small.Data
		}
		if hint.Latent, err = encodeHint(c, ctl, some, nil, y, x, method); err != nil || !ctl.Net.Fills() {
			return hint, err
		}
		if hint.Mask == nil {
			hint.Mask = make([]float32, y*x)
		}
		hint.Fill, err = encodeHint(c, ctl, ctl.Fill, ctl.Mask, y, x, method)
		return hint, err
	}
}

// encodeHint encodes a picture, gray if nil, at the size of a latent. keep, if any, is 1 where the picture is kept; the
// rest turns gray.
func encodeHint(
	c *graph.Call, ctl *value.Control, im, keep *picture.Image, y, x int, method string,
) (request.Latent, error) {
	y, x = 8*y, 8*x
	if im == nil {
		im = &picture.Image{B: 1, Y: y, X: x, C: 3, Data: slices.Repeat([]float32{0.5}, 3*y*x)}
	}
	im, err := resizedImage(im, x, y, method, resample.CropCenter, "image")
	if err != nil {
		return request.Latent{}, err
	}
	if keep != nil {
		keep, err = resizedImage(keep, x, y, resample.Bilinear, resample.CropCenter, "mask")
		if err != nil {
			return request.Latent{}, err
		}
		im = &picture.Image{B: im.B, Y: y, X: x, C: im.C, Data: slices.Clone(im.Data)}
		for i, v := range im.Data {
			im.Data[i] = (v-0.5)*float32(math.RoundToEven(float64(keep.Data[i/im.C]))) + 0.5
		}
	}
	if n := ctl.Net; !n.Patch && (n.Factor != 1 || n.Offset != 0) {
		im = &picture.Image{B: im.B, Y: y, X: x, C: im.C, Data: slices.Clone(im.Data)}
		for i, v := range im.Data {
			im.Data[i] = n.Factor*v + n.Offset
		}
	}
	if ctl.Net.ReadsPicture {
		return ctl.Net.Look(c.Use(), im)
	}
	return encodeImage(c, ctl.VAE, im)
}
