package classes

import (
	"math"

	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// resizeImageClasses are the rows that enlarge, shrink and cut pictures.
func resizeImageClasses() []graph.Class {
	methods := resizeMethods()
	side := func(name string, preset, lo int64) graph.Input {
		return graph.Int(name, "in pixels", preset, lo, 16384, 1)
	}
	return []graph.Class{
		{
			Name: "ImageScale", Display: "Upscale Image", Module: "nodes", Category: "image/upscaling",
			Aliases: "resize, resize image, scale image, image resize, zoom, zoom in, change size", Essential: "Image Tools",
			Inputs: []graph.Input{
				graph.Bare("image", "IMAGE"), graph.BareCombo("upscale_method", methods...),
				side("width", 512, 0), side("height", 512, 0), graph.BareCombo("crop", "disabled", "center"),
			},
			Outputs: graph.Slots("IMAGE"), Run: imageScale,
		},
		{
			Name: "ImageScaleBy", Display: "Upscale Image By", Module: "nodes", Category: "image/upscaling",
			Essential: "Image Tools",
			Inputs: []graph.Input{
				graph.Bare("image", "IMAGE"), graph.BareCombo("upscale_method", methods...),
				graph.Float("scale_by", "", 1, 0.01, 8, 0.01),
			},
			Outputs: graph.Slots("IMAGE"), Run: imageScaleBy,
		},
		{
			Name: "ImageScaleToTotalPixels", Display: "Scale Image to Total Pixels",
			Module:   "comfy_extras.nodes_post_processing",
			Category: "image/upscaling", NewStyle: true,
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""), graph.Combo("upscale_method", "", methods...),
				graph.Float("megapixels", "of 1024 x 1024", 1, 0.01, 16, 0.01),
				graph.Int("resolution_steps", "sides become multiples of this", 1, 1, 256, 0).AsAdvanced().AsLater(),
			},
			Outputs: graph.Slots("IMAGE"), Run: imageScaleToTotal,
		},
		{
			Name: "ImageCrop", Deprecated: true, Display: "Crop Image (DEPRECATED)", Module: "comfy_extras.nodes_images",
			Category: "image/transform",
			Aliases:  "trim", Essential: "Image Tools", NewStyle: true,
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""), side("width", 512, 1), side("height", 512, 1),
				side("x", 0, 0), side("y", 0, 0),
			},
			Outputs: graph.Slots("IMAGE"), Run: imageCrop,
		},
	}
}

// imageScale: a side of 0 follows from the aspect, both 0 leave the picture as it is.
func imageScale(c *graph.Call) ([]any, error) {
	im, w, h := graph.Arg[*picture.Image](c, "image"), c.Whole("width"), c.Whole("height")
	switch {
	case w == 0 && h == 0:
		return []any{im}, nil
	case w == 0:
		w = max(1, rounded(float64(im.X*h)/float64(im.Y)))
	case h == 0:
		h = max(1, rounded(float64(im.Y*w)/float64(im.X)))
	}
	return resized(im, w, h, c.Str("upscale_method"), c.Str("crop"), "width")
}

func imageScaleBy(c *graph.Call) ([]any, error) {
	im, by := graph.Arg[*picture.Image](c, "image"), c.Decimal("scale_by")
	return resized(im, rounded(float64(im.X)*by), rounded(float64(im.Y)*by), c.Str("upscale_method"),
		string(resample.CropDisabled), "scale_by")
}

func imageScaleToTotal(c *graph.Call) ([]any, error) {
	im, steps := graph.Arg[*picture.Image](c, "image"), c.Whole("resolution_steps")
	by := math.Sqrt(c.Decimal("megapixels") * 1024 * 1024 / float64(im.X*im.Y))
	side := func(n int) int { return rounded(float64(n)*by/float64(steps)) * steps }
	return resized(im, side(im.X), side(im.Y), c.Str("upscale_method"), string(resample.CropDisabled), "megapixels")
}

// resized gives the outputs of a node that resizes to x by y pixels; field is the input to blame for the size.
func resized(im *picture.Image, x, y int, method, crop, field string) ([]any, error) {
	out, err := resizedImage(im, x, y, method, crop, field)
	return []any{out}, err
}

// fitted is a picture of x by y pixels, im itself where it is of that size; field is the input to blame for the size.
func fitted(im *picture.Image, x, y int, method resample.Method, crop resample.Crop, field string,
) (*picture.Image, error) {
	if im.X == x && im.Y == y {
		return im, nil
	}
	return resizedImage(im, x, y, string(method), string(crop), field)
}

func resizedImage(im *picture.Image, x, y int, method, crop, field string) (*picture.Image, error) {
	if err := checkSize(field, im.B, y, x, im.C); err != nil {
		return nil, err
	}
	source := resample.Image{Data: im.Data, B: im.B, C: im.C, Y: im.Y, X: im.X, Layout: resample.ChannelsLast}
	m, err := resample.Upscale(source, x, y, resample.Method(method), resample.Crop(crop))
	if err != nil {
		return nil, fault.Bad(field, "%v", err)
	}
	return &picture.Image{B: m.B, Y: m.Y, X: m.X, C: m.C, Data: m.Data}, nil
}

// imageCrop cuts what lies inside the picture; an origin outside moves to the last pixel.
func imageCrop(c *graph.Call) ([]any, error) {
	im := graph.Arg[*picture.Image](c, "image")
	x, y := min(c.Whole("x"), im.X-1), min(c.Whole("y"), im.Y-1)
	w, h := min(c.Whole("width"), im.X-x), min(c.Whole("height"), im.Y-y)
	return []any{im.Cut(x, y, w, h)}, nil
}
