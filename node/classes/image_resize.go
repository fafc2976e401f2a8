package classes

import (
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// resizeImageClasses returns the classes that resize, crop, stitch and measure pictures, and split batches.
func resizeImageClasses() []graph.Class {
	methods := resizeMethods()
	side := func(name string, preset, lo int64) graph.Input {
		return graph.Int(name, "in pixels", preset, lo, 16384, 1)
	}
	const module = "comfy_extras.nodes_images"
	image := graph.Link("image", "IMAGE", "")
	return graph.Rows(graph.Class{Category: "image/upscaling", Outputs: graph.Slots("IMAGE")}, []graph.Class{
		{
			Name: "ImageScale", Display: "Upscale Image",
			Aliases: "resize, resize image, scale image, image resize, zoom, zoom in, change size", Essential: "Image Tools",
			Inputs: []graph.Input{
				graph.Bare("image", "IMAGE"), graph.BareCombo("upscale_method", methods...),
				side("width", 512, 0), side("height", 512, 0), graph.BareCombo("crop", "disabled", "center"),
			},
			Run: imageScale,
		},
		{
			Name: "ImageScaleBy", Display: "Upscale Image By", Essential: "Image Tools",
			Inputs: []graph.Input{
				graph.Bare("image", "IMAGE"), graph.BareCombo("upscale_method", methods...),
				graph.Float("scale_by", "", 1, 0.01, 8, 0.01),
			},
			Run: imageScaleBy,
		},
		{
			Name: "ImageScaleToTotalPixels", Display: "Scale Image to Total Pixels",
			Module: "comfy_extras.nodes_post_processing",
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""), graph.Combo("upscale_method", "", methods...),
				graph.Float("megapixels", "of 1024 x 1024", 1, 0.01, 16, 0.01),
				graph.Int("resolution_steps", "sides become multiples of this", 1, 1, 256, 0).AsAdvanced().AsLater(),
			},
			Run: imageScaleToTotal,
		},
		{
			Name: "ImageCrop", Display: "Crop Image (DEPRECATED)", Module: "comfy_extras.nodes_images",
			Category: "image/transform", Aliases: "trim", Essential: "Image Tools", Deprecated: true,
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""), side("width", 512, 1), side("height", 512, 1), side("x", 0, 0), side("y", 0, 0),
			},
			Run: imageCrop,
		},
		{
			Name: "ImageFromBatch", Display: "Get Image from Batch", Module: module, Category: "image/batch",
			Aliases: "select image, pick from batch, extract image",
			Inputs: []graph.Input{
				image, graph.Int("batch_index", "", 0, -16384, 16384, 0), graph.Int("length", "", 1, 1, 4096, 0),
			},
			Run: imageFromBatch,
		},
		{
			Name: "RepeatImageBatch", Display: "Repeat Image Batch", Module: module, Category: "image/batch",
			Aliases: "duplicate image, clone image", Inputs: []graph.Input{image, graph.Int("amount", "", 1, 1, 4096, 0)},
			Run: repeatImage,
		},
		{
			Name: "GetImageSize", Display: "Get Image Size", Module: module, Category: "image",
			Aliases: "dimensions, resolution, image info", Description: "Gives width, height and number of the pictures.",
			Inputs: []graph.Input{image}, Hidden: []graph.Hidden{{Name: "unique_id", Kind: "UNIQUE_ID"}},
			Outputs: []graph.Slot{
				{Name: "width", Type: "INT"}, {Name: "height", Type: "INT"}, {Name: "batch_size", Type: "INT"},
			},
			Run: imageSize,
		},
		{
			Name: "ImageScaleToMaxDimension", Display: "Scale Image to Max Dimension", Module: module,
			Inputs: []graph.Input{
				image, graph.Combo("upscale_method", "", "area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic"),
				graph.Int("largest_size", "the longer side, in pixels", 512, 0, 16384, 1),
			},
			Run: imageScaleToMax,
		},
		{
			Name: "FluxKontextImageScale", Module: "comfy_extras.nodes_flux", Category: "model/conditioning/flux",
			Description: "Scales and crops pictures to the nearest of the sizes that FLUX.1 Kontext was trained on.",
			Inputs:      []graph.Input{image}, Run: kontextScale,
		},
		{
			Name: "ImageStitch", Display: "Stitch Images", Module: "comfy_extras.nodes_images", Category: "image/transform",
			Aliases:     "combine images, join images, concatenate images, side by side",
			Description: "Puts the second picture beside, below or above the first, with a strip between them.",
			Inputs: []graph.Input{
				graph.Link("image1", "IMAGE", ""),
				graph.Combo("direction", "", "right", "down", "left", "up").With("default", "right"),
				graph.Bool("match_image_size", "scale the second picture to the side where they meet", true),
				graph.Int("spacing_width", "in pixels", 0, 0, 1024, 2).AsAdvanced(),
				graph.Combo("spacing_color", "", "white", "black", "red", "green", "blue").With("default", "white").AsAdvanced(),
				graph.Link("image2", "IMAGE", "").AsOptional(),
			},
			Run: stitch,
		},
	})
}

// imageScale computes a side of 0 from the aspect ratio. If both are 0, the picture stays as it is.
func imageScale(c *graph.Call) ([]any, error) {
	im, w, h := c.Image("image"), c.Whole("width"), c.Whole("height")
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
	im, by := c.Image("image"), c.Decimal("scale_by")
	return resized(im, rounded(float64(im.X)*by), rounded(float64(im.Y)*by), c.Str("upscale_method"),
		resample.CropDisabled, "scale_by")
}

func imageScaleToTotal(c *graph.Call) ([]any, error) {
	im, steps := c.Image("image"), c.Whole("resolution_steps")
	by := math.Sqrt(c.Decimal("megapixels") * 1024 * 1024 / float64(im.X*im.Y))
	side := func(n int) int { return rounded(float64(n)*by/float64(steps)) * steps }
	return resized(im, side(im.X), side(im.Y), c.Str("upscale_method"), resample.CropDisabled, "megapixels")
}

// resized returns the outputs of a node that resizes to x by y pixels; field is the input to blame for a bad size.
func resized(im *picture.Image, x, y int, method, crop, field string) ([]any, error) {
	out, err := resizedImage(im, x, y, method, crop, field)
	return []any{out}, err
}

// fitted returns the picture resized to x by y pixels, or im itself if it has that size; field is the input to blame
// for a bad size.
func fitted(im *picture.Image, x, y int, method, crop, field string) (*picture.Image, error) {
	if im.X == x && im.Y == y {
		return im, nil
	}
	return resizedImage(im, x, y, method, crop, field)
}

func resizedImage(im *picture.Image, x, y int, method, crop, field string) (*picture.Image, error) {
	if err := checkSize(field, im.B, y, x, im.C); err != nil {
		return nil, err
	}
	source := resample.Image{Data: im.Data, B: im.B, C: im.C, Y: im.Y, X: im.X, Layout: resample.ChannelsLast}
	m, err := resample.Upscale(source, x, y, method, crop)
	if err != nil {
		return nil, fault.Bad(field, "%v", err)
	}
	return &picture.Image{B: m.B, Y: m.Y, X: m.X, C: m.C, Data: m.Data}, nil
}

func imageCrop(c *graph.Call) ([]any, error) {
	return []any{cropped(c.Image("image"), c.Whole("x"), c.Whole("y"), c.Whole("width"), c.Whole("height"))}, nil
}

// cropped returns the part of a rectangle that lies inside a picture. An origin outside moves to the last pixel.
func cropped(im *picture.Image, x, y, width, height int) *picture.Image {
	x, y = min(x, im.X-1), min(y, im.Y-1)
	return im.Cut(x, y, min(width, im.X-x), min(height, im.Y-y))
}

func imageFromBatch(c *graph.Call) ([]any, error) {
	im := c.Image("image")
	from := fromIndex(c.Whole("batch_index"), im.B)
	return []any{im.Items(from, min(im.B-from, c.Whole("length")))}, nil
}

// fromIndex resolves an index into a batch: a negative one counts from the end, and both ends clamp.
func fromIndex(index, items int) int {
	if index < 0 {
		index += items
	}
	return max(0, min(items-1, index))
}

func repeatImage(c *graph.Call) ([]any, error) {
	im, amount := *c.Image("image"), c.Whole("amount")
	if err := checkSize("amount", amount, im.B, im.Y, im.X, im.C); err != nil {
		return nil, err
	}
	im.B, im.Data = amount*im.B, slices.Repeat(im.Data, amount)
	return []any{&im}, nil
}

func imageSize(c *graph.Call) ([]any, error) {
	im := c.Image("image")
	return []any{int64(im.X), int64(im.Y), int64(im.B)}, nil
}

// imageScaleToMax makes the longer side largest_size pixels long and keeps the aspect ratio.
func imageScaleToMax(c *graph.Call) ([]any, error) {
	im, n := c.Image("image"), c.Whole("largest_size")
	x, y := n, n
	switch {
	case im.Y > im.X:
		x = rounded(float64(im.X) / float64(im.Y) * float64(n))
	case im.X > im.Y:
		y = rounded(float64(im.Y) / float64(im.X) * float64(n))
	}
	return resized(im, x, y, c.Str("upscale_method"), resample.CropDisabled, "largest_size")
}

// kontextScale resizes to the size with the nearest aspect ratio, the narrower one of two that are equally near.
func kontextScale(c *graph.Call) ([]any, error) {
	im := c.Image("image")
	x, y, least := 0, 0, math.Inf(1)
	for _, s := range kontextSizes() {
		if d := math.Abs(float64(im.X)/float64(im.Y) - float64(s[0])/float64(s[1])); d < least {
			x, y, least = s[0], s[1], d
		}
	}
	return resized(im, x, y, resample.Lanczos, resample.CropCenter, "image")
}

// kontextSizes lists widths and heights of about 1024 x 1024 pixels, narrow ones first (the list in the inference code
// of Black Forest Labs).
func kontextSizes() [][2]int {
	out := [][2]int{
		{672, 1568}, {688, 1504}, {720, 1456}, {752, 1392}, {800, 1328}, {832, 1248}, {880, 1184}, {944, 1104}, {1024, 1024},
	}
	for _, s := range slices.Backward(slices.Clone(out[:8])) {
		out = append(out, [2]int{s[1], s[0]})
	}
	return out
}

func stitch(c *graph.Call) ([]any, error) {
	a := c.Image("image1")
	if !c.Given("image2") {
		return []any{a}, nil
	}
	b, direction := c.Image("image2"), c.Str("direction")
	across := direction == "left" || direction == "right"
	b, a = lengthened(b, a.B), lengthened(a, b.B)
	if aspect := float64(b.X) / float64(b.Y); c.Flag("match_image_size") {
		x, y := int(float64(a.Y)*aspect), a.Y
		if !across {
			x, y = a.X, int(float64(a.X)/aspect)
		}
		var err error
		if b, err = resizedImage(b, x, y, resample.Lanczos, resample.CropDisabled, "image2"); err != nil {
			return nil, err
		}
	}
	y, x, channels, gap := max(a.Y, b.Y), max(a.X, b.X), max(a.C, b.C), c.Whole("spacing_width")
	gap += gap % 2
	colour := map[string][]float32{
		"white": {1, 1, 1, 1}, "black": {0, 0, 0, 1}, "red": {1, 0, 0, 1}, "green": {0, 1, 0, 1}, "blue": {0, 0, 1, 1},
	}[c.Str("spacing_color")]
	edge := float32(0) // fills up the smaller picture, in all its channels
	if c.Str("spacing_color") == "white" {
		edge = 1
	}
	strip := &picture.Image{B: a.B, Y: y, X: gap, C: channels}
	if across {
		a, b = centred(a, y, a.X, edge), centred(b, y, b.X, edge)
	} else {
		a, b, strip.Y, strip.X = centred(a, a.Y, x, edge), centred(b, b.Y, x, edge), gap, x
	}
	strip.Data = slices.Repeat(colour[:channels], strip.B*strip.Y*strip.X)
	parts := []*picture.Image{a.Widened(channels), strip, b.Widened(channels)}
	if direction == "left" || direction == "up" {
		slices.Reverse(parts)
	}
	total := a.Y*a.X + b.Y*b.X + strip.Y*strip.X
	if err := checkSize("image2", a.B, 1, total, channels); err != nil {
		return nil, err
	}
	out := &picture.Image{B: a.B, Y: y, X: a.X + b.X + gap, C: channels, Data: make([]float32, 0, a.B*total*channels)}
	lines := y // parts are joined line by line if side by side, else whole
	if !across {
		out.Y, out.X, lines = a.Y+b.Y+gap, x, 1
	}
	for i := range a.B * lines {
		for _, p := range parts {
			n := len(p.Data) / (a.B * lines)
			out.Data = append(out.Data, p.Data[i*n:(i+1)*n]...)
		}
	}
	return []any{out}, nil
}

// lengthened repeats the last picture until the batch has n.
func lengthened(im *picture.Image, n int) *picture.Image {
	if n <= im.B {
		return im
	}
	one := im.Y * im.X * im.C
	out := *im
	out.B, out.Data = n, slices.Concat(im.Data, slices.Repeat(im.Data[len(im.Data)-one:], n-im.B))
	return &out
}

// centred centers pictures on a background of y by x pixels of value v.
func centred(im *picture.Image, y, x int, v float32) *picture.Image {
	return framed(im, y, x, (y-im.Y)/2, (x-im.X)/2, v)
}

// framed places pictures at (top, left) on a background of y by x pixels of value v.
func framed(im *picture.Image, y, x, top, left int, v float32) *picture.Image {
	if im.Y == y && im.X == x {
		return im
	}
	out := &picture.Image{B: im.B, Y: y, X: x, C: im.C, Data: filled(im.B*y*x*im.C, v)}
	for i, n := 0, im.X*im.C; i < im.B*im.Y; i++ {
		copy(out.Data[((i/im.Y*y+top+i%im.Y)*x+left)*im.C:], im.Data[i*n:(i+1)*n])
	}
	return out
}
