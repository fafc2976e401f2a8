package classes

import (
	"math"
	"slices"

	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// imageBatchClasses are the rows that take batches of pictures apart, measure pictures, and scale them to sizes that
// models like.
func imageBatchClasses() []graph.Class {
	const module = "comfy_extras.nodes_images"
	image := graph.Link("image", "IMAGE", "")
	return []graph.Class{
		{
			Name: "ImageFromBatch", Display: "Get Image from Batch", Module: module, Category: "image/batch",
			Aliases: "select image, pick from batch, extract image", NewStyle: true,
			Inputs: []graph.Input{
				image, graph.Int("batch_index", "", 0, -16384, 16384, 0), graph.Int("length", "", 1, 1, 4096, 0),
			},
			Outputs: graph.Slots("IMAGE"), Run: imageFromBatch,
		},
		{
			Name: "RepeatImageBatch", Display: "Repeat Image Batch", Module: module, Category: "image/batch",
			Aliases: "duplicate image, clone image", NewStyle: true,
			Inputs:  []graph.Input{image, graph.Int("amount", "", 1, 1, 4096, 0)},
			Outputs: graph.Slots("IMAGE"), Run: repeatImage,
		},
		{
			Name: "GetImageSize", Display: "Get Image Size", Module: module, Category: "image",
			Aliases: "dimensions, resolution, image info", NewStyle: true,
			Description: "Gives width, height and number of the pictures.",
			Inputs:      []graph.Input{image}, Hidden: []graph.Hidden{{Name: "unique_id", Kind: "UNIQUE_ID"}},
			Outputs: []graph.Slot{
				{Name: "width", Type: "INT"}, {Name: "height", Type: "INT"}, {Name: "batch_size", Type: "INT"},
			}, Run: imageSize,
		},
		{
			Name: "ImageScaleToMaxDimension", Display: "Scale Image to Max Dimension", Module: module,
			Category: "image/upscaling", NewStyle: true,
			Inputs: []graph.Input{
				image, graph.Combo("upscale_method", "", "area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic"),
				graph.Int("largest_size", "the longer side, in pixels", 512, 0, 16384, 1),
			},
			Outputs: graph.Slots("IMAGE"), Run: imageScaleToMax,
		},
		{
			Name: "FluxKontextImageScale", Module: "comfy_extras.nodes_flux",
			Category: "model/conditioning/flux", NewStyle: true,
			Description: "Scales and crops pictures to the nearest of the sizes that FLUX.1 Kontext was trained on.",
			Inputs:      []graph.Input{image}, Outputs: graph.Slots("IMAGE"), Run: kontextScale,
		},
	}
}

func imageFromBatch(c *graph.Call) ([]any, error) {
	im := *graph.Arg[*picture.Image](c, "image")
	from := fromIndex(c.Whole("batch_index"), im.B)
	length, item := min(im.B-from, c.Whole("length")), im.Y*im.X*im.C
	im.B, im.Data = length, im.Data[from*item:(from+length)*item]
	return []any{&im}, nil
}

// fromIndex is the item of a batch that an index names: below 0 counts from the end, beyond either end is that end.
func fromIndex(index, items int) int {
	if index < 0 {
		index += items
	}
	return max(0, min(items-1, index))
}

func repeatImage(c *graph.Call) ([]any, error) {
	im, amount := *graph.Arg[*picture.Image](c, "image"), c.Whole("amount")
	if err := checkSize("amount", amount, im.B, im.Y, im.X, im.C); err != nil {
		return nil, err
	}
	im.B, im.Data = amount*im.B, slices.Repeat(im.Data, amount)
	return []any{&im}, nil
}

func imageSize(c *graph.Call) ([]any, error) {
	im := graph.Arg[*picture.Image](c, "image")
	return []any{int64(im.X), int64(im.Y), int64(im.B)}, nil
}

// imageScaleToMax makes the longer side largest_size pixels long.
func imageScaleToMax(c *graph.Call) ([]any, error) {
	im, n := graph.Arg[*picture.Image](c, "image"), c.Whole("largest_size")
	x, y := n, n
	switch {
	case im.Y > im.X:
		x = rounded(float64(im.X) / float64(im.Y) * float64(n))
	case im.X > im.Y:
		y = rounded(float64(im.Y) / float64(im.X) * float64(n))
	}
	return resized(im, x, y, c.Str("upscale_method"), string(resample.CropDisabled), "largest_size")
}

// kontextScale takes the size whose aspect is nearest; of two that are equally near the narrower one.
func kontextScale(c *graph.Call) ([]any, error) {
	im := graph.Arg[*picture.Image](c, "image")
	x, y, least := 0, 0, math.Inf(1)
	for _, s := range kontextSizes() {
		if d := math.Abs(float64(im.X)/float64(im.Y) - float64(s[0])/float64(s[1])); d < least {
			x, y, least = s[0], s[1], d
		}
	}
	return resized(im, x, y, string(resample.Lanczos), string(resample.CropCenter), "image")
}

// kontextSizes are widths and heights of about 1024 x 1024 pixels, narrow ones first (the list in the inference code of
// Black Forest Labs).
func kontextSizes() [][2]int {
	out := [][2]int{
		{672, 1568}, {688, 1504}, {720, 1456}, {752, 1392}, {800, 1328}, {832, 1248}, {880, 1184}, {944, 1104}, {1024, 1024},
	}
	for _, s := range slices.Backward(slices.Clone(out[:8])) {
		out = append(out, [2]int{s[1], s[0]})
	}
	return out
}
