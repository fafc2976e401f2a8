package node

import (
	"math"

	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// imageBatchClasses are the rows that take batches of pictures apart, measure pictures, and scale them to sizes that models like.
func imageBatchClasses() []Class {
	const module = "comfy_extras.nodes_images"
	image := linkIn("image", "IMAGE", "")
	return []Class{
		{
			Name: "ImageFromBatch", Module: module, Category: "image/batch", NewStyle: true,
			Inputs: []Input{
				image, number("batch_index", "INT", "", "default", int64(0), "min", int64(0), "max", int64(4095)),
				number("length", "INT", "", "default", int64(1), "min", int64(1), "max", int64(4096)),
			},
			Outputs: slots("IMAGE"), Run: imageFromBatch,
		},
		{
			Name: "RepeatImageBatch", Module: module, Category: "image/batch", NewStyle: true,
			Inputs:  []Input{image, number("amount", "INT", "", "default", int64(1), "min", int64(1), "max", int64(4096))},
			Outputs: slots("IMAGE"), Run: repeatImage,
		},
		{
			Name: "GetImageSize", Display: "Get Image Size", Module: module, Category: "image", NewStyle: true,
			Description: "Gives width, height and number of the pictures.",
			Inputs:      []Input{image}, Hidden: []Hidden{{"unique_id", "UNIQUE_ID"}},
			Outputs: []Slot{{"width", "INT"}, {"height", "INT"}, {"batch_size", "INT"}}, Run: imageSize,
		},
		{
			Name: "ImageScaleToMaxDimension", Module: module, Category: "image/upscaling", NewStyle: true,
			Inputs: []Input{
				image, combo("upscale_method", "", "area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic"),
				number("largest_size", "INT", "the longer side, in pixels", "default", int64(512), "min", int64(0), "max", int64(16384), "step", int64(1)),
			},
			Outputs: slots("IMAGE"), Run: imageScaleToMax,
		},
		{
			Name: "FluxKontextImageScale", Module: "comfy_extras.nodes_flux", Category: "advanced/conditioning/flux", NewStyle: true,
			Description: "Scales and crops pictures to the nearest of the sizes that FLUX.1 Kontext was trained on.",
			Inputs:      []Input{image}, Outputs: slots("IMAGE"), Run: kontextScale,
		},
	}
}

func imageFromBatch(c *Call) ([]any, error) {
	im := *arg[*picture.Image](c, "image")
	from := min(im.B-1, c.whole("batch_index"))
	length, item := min(im.B-from, c.whole("length")), im.Y*im.X*im.C
	im.B, im.Data = length, im.Data[from*item:(from+length)*item]
	return []any{&im}, nil
}

func repeatImage(c *Call) ([]any, error) {
	im, amount := *arg[*picture.Image](c, "image"), c.whole("amount")
	if err := checkSize("amount", amount, im.B, im.Y, im.X, im.C); err != nil {
		return nil, err
	}
	im.B, im.Data = amount*im.B, repeated(im.Data, amount)
	return []any{&im}, nil
}

func imageSize(c *Call) ([]any, error) {
	im := arg[*picture.Image](c, "image")
	return []any{int64(im.X), int64(im.Y), int64(im.B)}, nil
}

// imageScaleToMax makes the longer side largest_size pixels long.
func imageScaleToMax(c *Call) ([]any, error) {
	im, n := arg[*picture.Image](c, "image"), c.whole("largest_size")
	x, y := n, n
	switch {
	case im.Y > im.X:
		x = rounded(float64(im.X) / float64(im.Y) * float64(n))
	case im.X > im.Y:
		y = rounded(float64(im.Y) / float64(im.X) * float64(n))
	}
	return resized(im, x, y, c.str("upscale_method"), string(resample.CropDisabled), "largest_size")
}

// kontextScale takes the size whose aspect is nearest; of two that are equally near the narrower one.
func kontextScale(c *Call) ([]any, error) {
	im := arg[*picture.Image](c, "image")
	x, y, least := 0, 0, math.Inf(1)
	for _, s := range kontextSizes() {
		if d := math.Abs(float64(im.X)/float64(im.Y) - float64(s[0])/float64(s[1])); d < least {
			x, y, least = s[0], s[1], d
		}
	}
	return resized(im, x, y, string(resample.Lanczos), string(resample.CropCenter), "image")
}

// kontextSizes are widths and heights of about 1024 x 1024 pixels, narrow ones first (the list in the inference code of Black Forest Labs).
func kontextSizes() [][2]int {
	half := [][2]int{{672, 1568}, {688, 1504}, {720, 1456}, {752, 1392}, {800, 1328}, {832, 1248}, {880, 1184}, {944, 1104}, {1024, 1024}}
	out := append([][2]int(nil), half...)
	for i := len(half) - 2; i >= 0; i-- {
		out = append(out, [2]int{half[i][1], half[i][0]})
	}
	return out
}
