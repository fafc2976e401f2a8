package classes

import (
	"math"
	"slices"

	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// resizeMethods are the ways in which pictures are resized, in ComfyUI's order.
func resizeMethods() []string {
	return []string{"nearest-exact", "bilinear", "area", "bicubic", "lanczos"}
}

// editImageClasses are the rows that resize pictures and masks alike, and put pictures together.
func editImageClasses() []graph.Class {
	const processing = "comfy_extras.nodes_post_processing"
	image := graph.Link("image", "IMAGE", "")
	return []graph.Class{
		{
			Name: "ResizeImageMaskNode", Display: "Resize Image/Mask", Module: processing, Category: "image/transform",
			Aliases: "resize, resize image, resize mask, scale, scale image, scale mask, image resize, change size, " +
				"dimensions, shrink, enlarge", NewStyle: true,
			Description: "Resizes pictures or masks to sides, by a factor, or to an area.",
			Inputs: []graph.Input{
				graph.Match("input", "input_type", "IMAGE,MASK"), resizeTypes(),
				graph.Combo("scale_method", "", resizeMethods()...).With("default", "area"),
			},
			Outputs: []graph.Slot{graph.MatchSlot("resized", "input_type")}, Run: resizeImageMask,
		},
		{
			Name: "BatchImagesNode", Display: "Batch Images", Module: processing, Category: "image/batch",
			Aliases:   "batch, image batch, batch images, combine images, merge images, stack images",
			Essential: "Image Tools", NewStyle: true,
			Inputs:  []graph.Input{graph.Grow("images", "image", 50, image)},
			Outputs: graph.Slots("IMAGE"), Run: batchImages,
		},
		{
			Name: "ImageFlip", Display: "Flip Image", Module: "comfy_extras.nodes_images", Category: "image/transform",
			Aliases: "mirror, reflect", NewStyle: true,
			Inputs:  []graph.Input{image, graph.Combo("flip_method", "", "x-axis: vertically", "y-axis: horizontally")},
			Outputs: graph.Slots("IMAGE"), Run: imageFlip,
		},
		{
			Name: "ImageCompositeMasked", Display: "Image Composite Masked", Module: "comfy_extras.nodes_mask",
			Category: "image/compositing", Aliases: "overlay, layer, paste image, images composition", NewStyle: true,
			Inputs: []graph.Input{
				graph.Link("destination", "IMAGE", ""), graph.Link("source", "IMAGE", ""),
				pixels("x", 0, 0, 1), pixels("y", 0, 0, 1), graph.Bool("resize_source", "", false),
				graph.Link("mask", "MASK", "").AsOptional(),
			},
			Outputs: graph.Slots("IMAGE"), Run: compositeMasked,
		},
		{
			Name: "JoinImageWithAlpha", Display: "Join Image with Alpha", Module: "comfy_extras.nodes_compositing",
			Category: "image/compositing", Aliases: "add transparency, apply alpha, composite alpha, RGBA", NewStyle: true,
			Inputs:  []graph.Input{image, graph.Link("alpha", "MASK", "")},
			Outputs: graph.Slots("IMAGE"), Run: joinAlpha,
		},
		{
			Name: "SplitImageWithAlpha", Display: "Split Image with Alpha", Module: "comfy_extras.nodes_compositing",
			Category: "image/compositing", Aliases: "extract alpha, separate transparency, remove alpha", NewStyle: true,
			Inputs: []graph.Input{image}, Outputs: graph.Slots("IMAGE", "MASK"), Run: splitAlpha,
		},
	}
}

func resizeTypes() graph.Input {
	crop := graph.Combo("crop", "disabled stretches", "disabled", "center").With("default", "center")
	side := func(name string) graph.Input {
		return graph.Int(name, "in pixels; 0: as the other side demands", 512, 0, 16384, 1)
	}
	one := func(key string, inputs ...graph.Input) graph.Alternative {
		return graph.Alternative{Key: key, Inputs: inputs}
	}
	return graph.Branch("resize_type", "",
		one("scale dimensions", side("width"), side("height"), crop),
		one("scale by multiplier", graph.Float("multiplier", "", 1, 0.01, 8, 0.01)),
		one("scale longer dimension", side("longer_size")),
		one("scale shorter dimension", side("shorter_size")),
		one("scale width", side("width")), one("scale height", side("height")),
		one("scale total pixels", graph.Float("megapixels", "of 1024 x 1024", 1, 0.01, 16, 0.01)),
		one("match size", graph.Link("match", "IMAGE,MASK", ""), crop),
		one("scale to multiple", graph.Int("multiple", "", 8, 1, 16384, 1)))
}

// asImage is a picture, or a mask as one of one channel.
func asImage(c *graph.Call, name string) *picture.Image {
	switch v := c.Raw(name).(type) {
	case *picture.Image:
		return v
	case *picture.Mask:
		return &picture.Image{B: v.B, Y: v.Y, X: v.X, C: 1, Data: v.Data}
	}
	panic(fault.Bad(name, "takes IMAGE or MASK, got %s", graph.Describe(c.Raw(name))))
}

// resizeImageMask resizes to the sides that the choice gives; "scale to multiple" cuts what is left over, so that the
// aspect stays.
func resizeImageMask(c *graph.Call) ([]any, error) {
	im, method, kind := asImage(c, "input"), c.Str("scale_method"), c.Chosen("resize_type")
	out, err := resizedTo(c, im, kind, method)
	if err != nil {
		return nil, err
	}
	if _, mask := c.Raw("input").(*picture.Mask); mask {
		return []any{out.Channel(0)}, nil
	}
	return []any{out}, nil
}

func resizedTo(c *graph.Call, im *picture.Image, kind, method string) (*picture.Image, error) {
	crop, w, h := "disabled", 0, 0
	wide, high := float64(im.X), float64(im.Y)
	other := func(n int, ratio float64) int { return max(1, rounded(ratio*float64(n))) }
	switch kind {
	case "scale by multiplier":
		by := c.Decimal("resize_type.multiplier")
		w, h = rounded(wide*by), rounded(high*by)
	case "scale dimensions":
		w, h, crop = c.Whole("resize_type.width"), c.Whole("resize_type.height"), c.Str("resize_type.crop")
	case "scale width":
		w, h = c.Whole("resize_type.width"), 0
	case "scale height":
		w, h = 0, c.Whole("resize_type.height")
	case "scale total pixels":
		by := math.Sqrt(math.Floor(c.Decimal("resize_type.megapixels")*1024*1024) / (wide * high))
		w, h = rounded(wide*by), rounded(high*by)
	case "match size":
		match := asImage(c, "resize_type.match")
		w, h, crop = match.X, match.Y, c.Str("resize_type.crop")
	case "scale to multiple":
		return toMultiple(im, c.Whole("resize_type.multiple"), method)
	default: // "scale longer dimension" or "scale shorter dimension"
		longer := kind == "scale longer dimension"
		n := c.Whole("resize_type." + map[bool]string{true: "longer_size", false: "shorter_size"}[longer])
		if w, h = n, n; im.Y > im.X == longer && im.Y != im.X {
			w = rounded(wide / high * float64(n))
		} else if im.Y != im.X {
			h = rounded(high / wide * float64(n))
		}
		return resizedImage(im, w, h, method, crop, "resize_type")
	}
	switch {
	case w == 0 && h == 0 && kind != "scale by multiplier":
		return im, nil
	case w == 0 && h != 0:
		w = other(h, wide/high)
	case h == 0 && w != 0:
		h = other(w, high/wide)
	}
	return resizedImage(im, w, h, method, crop, "resize_type")
}

func toMultiple(im *picture.Image, n int, method string) (*picture.Image, error) {
	w, h := im.X/n*n, im.Y/n*n
	if w == 0 || h == 0 || w == im.X && h == im.Y {
		return im, nil
	}
	by := [2]float64{float64(w) / float64(im.X), float64(h) / float64(im.Y)}
	x, y := w, max(h, int(math.Ceil(float64(im.Y)*by[0])))
	if by[0] < by[1] {
		x, y = max(w, int(math.Ceil(float64(im.X)*by[1]))), h
	}
	out, err := resizedImage(im, x, y, method, string(resample.CropDisabled), "resize_type")
	if err != nil {
		return nil, err
	}
	return out.Cut((x-w)/2, (y-h)/2, w, h), nil
}

// batchImages puts pictures behind each other, all of the size of the first and with alpha where one has it.
func batchImages(c *graph.Call) ([]any, error) {
	_, values := c.Grown("images")
	first, channels := *values[0].(*picture.Image), 0
	for _, v := range values {
		channels = max(channels, v.(*picture.Image).C)
	}
	out := &picture.Image{Y: first.Y, X: first.X, C: channels}
	for _, v := range values {
		im := v.(*picture.Image).Widened(channels)
		im, err := fitted(im, out.X, out.Y, resample.Bilinear, resample.CropCenter, "images")
		if err != nil {
			return nil, err
		}
		out.B += im.B
		if err := checkSize("images", out.B, out.Y, out.X, out.C); err != nil {
			return nil, err
		}
		out.Data = append(out.Data, im.Data...)
	}
	return []any{out}, nil
}

func imageFlip(c *graph.Call) ([]any, error) {
	im := *graph.Arg[*picture.Image](c, "image")
	upsideDown := c.Str("flip_method")[0] == 'x'
	data := make([]float32, 0, len(im.Data))
	for i := range im.B * im.Y * im.X {
		b, y, x := i/im.X/im.Y, i/im.X%im.Y, im.X-1-i%im.X
		if upsideDown {
			y, x = im.Y-1-y, i%im.X
		}
		at := ((b*im.Y+y)*im.X + x) * im.C
		data = append(data, im.Data[at:at+im.C]...)
	}
	im.Data = data
	return []any{&im}, nil
}

// compositeMasked puts the source at (x, y) over the destination where the mask says so, cut at the edges.
func compositeMasked(c *graph.Call) ([]any, error) {
	to, from := graph.Arg[*picture.Image](c, "destination"), graph.Arg[*picture.Image](c, "source")
	if from.C > to.C {
		from = from.First(to.C)
	}
	from = from.Widened(to.C)
	var err error
	if c.Flag("resize_source") {
		if from, err = fitted(from, to.X, to.Y, resample.Bilinear, resample.CropDisabled, "source"); err != nil {
			return nil, err
		}
	}
	mask := &picture.Mask{B: 1, Y: from.Y, X: from.X, Data: filled(from.Y*from.X, 1)}
	if c.Given("mask") {
		if mask, err = sizedMask(c.Mask("mask"), from.Y, from.X); err != nil {
			return nil, err
		}
	}
	left, top := min(c.Whole("x"), to.X), min(c.Whole("y"), to.Y)
	out := *to
	out.Data = slices.Clone(to.Data)
	for b := range to.B {
		for y := range min(from.Y, to.Y-top) {
			for x := range min(from.X, to.X-left) {
				m := mask.Data[(b%mask.B*from.Y+y)*from.X+x]
				src := from.Data[((b%from.B*from.Y+y)*from.X+x)*from.C:][:to.C]
				dst := out.Data[((b*to.Y+top+y)*to.X+left+x)*to.C:][:to.C]
				for i := range dst {
					dst[i] = float32(m*src[i]) + float32((1-m)*dst[i])
				}
			}
		}
	}
	return []any{&out}, nil
}

// joinAlpha gives pictures 1 - alpha as their fourth channel.
func joinAlpha(c *graph.Call) ([]any, error) {
	im := graph.Arg[*picture.Image](c, "image")
	alpha, err := sizedMask(c.Mask("alpha"), im.Y, im.X)
	if err != nil {
		return nil, err
	}
	out := &picture.Image{B: max(im.B, alpha.B), Y: im.Y, X: im.X, C: 4}
	if err := checkSize("alpha", out.B, out.Y, out.X, out.C); err != nil {
		return nil, err
	}
	n := im.Y * im.X
	for i := range out.B * n {
		p := im.Data[(i/n%im.B*n+i%n)*im.C:]
		out.Data = append(out.Data, p[0], p[1], p[2], 1-alpha.Data[i/n%alpha.B*n+i%n])
	}
	return []any{out}, nil
}

func splitAlpha(c *graph.Call) ([]any, error) {
	im := graph.Arg[*picture.Image](c, "image")
	alpha := im.Widened(4).Channel(3)
	return []any{im.First(3), alpha.Like(inverted(alpha.Data))}, nil
}
