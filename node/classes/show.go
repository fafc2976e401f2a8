package classes

import (
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
)

// workflowTexts are the hidden inputs of classes that write the workflow into their files.
func workflowTexts() []graph.Hidden {
	return []graph.Hidden{{Name: "prompt", Kind: "PROMPT"}, {Name: "extra_pnginfo", Kind: "EXTRA_PNGINFO"}}
}

// showClasses are the rows that save pictures in a chosen form and show them in the editor.
func showClasses() []graph.Class {
	kind := func(depth string, depths, spaces []string) []graph.Input {
		return []graph.Input{
			graph.Combo("bit_depth", "", depths...).With("default", depth).AsAdvanced(),
			graph.Combo("input_color_space", "", spaces...).With("default", "sRGB").AsAdvanced(),
		}
	}
	return []graph.Class{
		{
			Name: "SaveImageAdvanced", Display: "Save Image (Advanced)", Module: "comfy_extras.nodes_images",
			Category: "image", Aliases: "save, save image, export image, output image, write image", Essential: "Basics",
			NewStyle: true, Output: true, Description: "Saves the pictures to the output folder.",
			Inputs: []graph.Input{
				graph.Link("images", "IMAGE", "the pictures to save"),
				graph.Number("filename_prefix", "STRING", "start of the file name, as in SaveImage", "default", "ComfyUI",
					"multiline", false),
				graph.Branch("format", "", graph.Alternative{
					Key: "png", Inputs: kind("8-bit", []string{"8-bit", "16-bit"}, []string{"sRGB"}),
				}, graph.Alternative{
					Key:    "exr",
					Inputs: kind("32-bit float", []string{"32-bit float"}, []string{"sRGB", "HDR", "linear"}),
				}),
			},
			Outputs: []graph.Slot{{Name: "images", Type: "IMAGE"}}, Hidden: workflowTexts(), Run: saveAdvanced,
			Check: func(job *graph.Job, roots *files.Roots, in *pyjson.Object) (string, string) {
				for name, only := range map[string]string{"format": "png", "format.bit_depth": "8-bit"} {
					if v, ok := in.At(name).(string); ok && v != only {
						return name, v + " is not supported, only " + only
					}
				}
				return checkSavePrefix(job, roots, in)
			},
		},
		{
			Name: "ImageCompare", Display: "Compare Images", Module: "comfy_extras.nodes_image_compare",
			Category: "image", Essential: "Image Tools", NewStyle: true, Experimental: true, Output: true,
			Description: "Shows two pictures behind a slider.",
			Inputs: []graph.Input{
				graph.Number("compare_view", "IMAGECOMPARE", "", "socketless", true).AsLater(),
				graph.Link("image_a", "IMAGE", "").AsOptional(), graph.Link("image_b", "IMAGE", "").AsOptional(),
			},
			Hidden: workflowTexts(), Run: compareImages,
		},
		{
			Name: "MaskPreview", Display: "Preview Mask", Module: "comfy_extras.nodes_mask", Category: "image/mask",
			Aliases: "show mask, view mask, inspect mask, debug mask", NewStyle: true, Output: true,
			Description: "Saves the masks to the temp folder, as pictures.",
			Inputs:      []graph.Input{graph.Link("mask", "MASK", "")}, Hidden: workflowTexts(),
			Outputs: []graph.Slot{{Name: "mask", Type: "MASK"}}, Run: func(c *graph.Call) ([]any, error) {
				m := c.Mask("mask")
				return []any{m}, saveTemp(c, grey(m))
			},
		},
		{
			Name: "ImageCropV2", Display: "Crop Image", Module: "comfy_extras.nodes_images", Category: "image/transform",
			Aliases: "crop, cut, trim", Essential: "Image Tools", NewStyle: true, Shows: true,
			Description: "Cuts a rectangle out of the pictures.",
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""),
				graph.Number("crop_region", "BOUNDING_BOX", "", "default",
					pyjson.NewObject("x", int64(0), "y", int64(0), "width", int64(512), "height", int64(512)),
					"socketless", true, "component", "ImageCrop"),
			},
			Outputs: graph.Slots("IMAGE"), Run: cropRegion,
		},
	}
}

func saveAdvanced(c *graph.Call) ([]any, error) {
	if kind, depth := c.Chosen("format"), c.Str("format.bit_depth"); kind != "png" || depth != "8-bit" {
		return nil, fault.Bad("format", "%s of %s is not supported, only png of 8-bit", kind, depth)
	}
	return saveImages(c, c.Str("filename_prefix"), "output")
}

// compareImages hands both over as temporary files; the editor takes them from a_images and b_images.
func compareImages(c *graph.Call) ([]any, error) {
	for _, side := range []string{"a", "b"} {
		if !c.Given("image_" + side) {
			c.Show(side+"_images", []any{})
			continue
		}
		im := graph.Arg[*picture.Image](c, "image_"+side)
		if err := saveAs(c, im, "comfy.compare."+side, "temp", side+"_images"); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// saveTemp shows pictures as classes do that are no PreviewImage.
func saveTemp(c *graph.Call, im *picture.Image) error {
	c.Show("animated", []any{false})
	return saveAs(c, im, "ComfyUI_temp_"+randomSuffix(), "temp", "images")
}

// cropRegion cuts what lies inside the picture; an origin outside moves to the last pixel.
func cropRegion(c *graph.Call) ([]any, error) {
	im, region := graph.Arg[*picture.Image](c, "image"), map[string]int{"x": 0, "y": 0, "width": 512, "height": 512}
	given, ok := c.Raw("crop_region").(*pyjson.Object)
	if !ok {
		return nil, fault.Bad("crop_region", "takes an object {x, y, width, height}, got %s",
			pyjson.Excerpt(pyjson.Repr(c.Raw("crop_region"))))
	}
	for name := range region {
		v, there := given.Get(name)
		n, whole := v.(int64)
		lowest := map[bool]int64{true: 0, false: 1}[name == "x" || name == "y"]
		if there && (!whole || n < lowest || n > 16384) {
			return nil, fault.Bad("crop_region", "%s is %s, want a whole number of %d to 16384", name,
				pyjson.Excerpt(pyjson.Repr(v)), lowest)
		}
		if there {
			region[name] = int(n)
		}
	}
	x, y := min(region["x"], im.X-1), min(region["y"], im.Y-1)
	out := im.Cut(x, y, min(region["width"], im.X-x), min(region["height"], im.Y-y))
	return []any{out}, saveTemp(c, out)
}
