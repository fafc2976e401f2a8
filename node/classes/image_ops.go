package classes

import (
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// pixels returns an input for a length or position in pixels.
func pixels(name string, preset, lo, step int64) graph.Input {
	return graph.Int(name, "in pixels", preset, lo, 16384, step)
}

// imageOpClasses returns the classes that make, modify and combine pictures, and the one that resizes pictures or
// masks.
func imageOpClasses() []graph.Class {
	const processing = "comfy_extras.nodes_post_processing"
	image := graph.Link("image", "IMAGE", "")
	return graph.Rows(graph.Class{Outputs: graph.Slots("IMAGE")}, []graph.Class{
		{
			Name: "ImagePadForOutpaint", Display: "Pad Image for Outpainting", Category: "image/transform",
			Aliases: "extend canvas, expand image",
			Inputs: []graph.Input{
				graph.Bare("image", "IMAGE"), pixels("left", 0, 0, 8), pixels("top", 0, 0, 8),
				pixels("right", 0, 0, 8), pixels("bottom", 0, 0, 8),
				graph.Int("feathering", "how far the mask reaches into the picture", 40, 0, 16384, 1).AsAdvanced(),
			},
			Outputs: graph.Slots("IMAGE", "MASK"), Run: imagePad,
		},
		{
			Name: "ImageInvert", Display: "Invert Image Colors", Category: "image/color", Aliases: "reverse colors",
			Essential: "Image Tools", Inputs: []graph.Input{graph.Bare("image", "IMAGE")}, Run: imageInvert,
		},
		{
			Name: "ImageBatch", Display: "Batch Images (DEPRECATED)", Category: "image/batch",
			Aliases: "combine images, merge images, stack images", Deprecated: true,
			Inputs: []graph.Input{graph.Bare("image1", "IMAGE"), graph.Bare("image2", "IMAGE")}, Run: imageBatch,
		},
		{
			Name: "EmptyImage", Display: "Empty Image", Category: "image",
			Inputs: []graph.Input{
				pixels("width", 512, 1, 1), pixels("height", 512, 1, 1), graph.Int("batch_size", "", 1, 1, 4096, 0),
				graph.Int("color", "0xRRGGBB", 0, 0, 0xFFFFFF, 1).With("display", "color"),
			},
			Run: emptyImage,
		},
		{
			Name: "Canny", Display: "Detect Edges (Canny)", Module: "comfy_extras.nodes_canny", Category: "image/filters",
			Aliases: "edge detection, outline, contour detection, line art", Essential: "Image Tools",
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""), graph.Float("low_threshold", "weaker edges are none", 0.4, 0.01, 0.99, 0.01),
				graph.Float("high_threshold", "edges above it draw weaker ones in", 0.8, 0.01, 0.99, 0.01),
			},
			Run: canny,
		},
		{
			Name: "ImageBlend", Display: "Blend Images", Module: "comfy_extras.nodes_post_processing", Category: "image/filters",
			Aliases: "mix images", Essential: "Image Tools",
			Inputs: []graph.Input{
				graph.Link("image1", "IMAGE", ""), graph.Link("image2", "IMAGE", ""),
				graph.Float("blend_factor", "part of the blended picture", 0.5, 0, 1, 0.01),
				graph.Combo("blend_mode", "", "normal", "multiply", "screen", "overlay", "soft_light", "difference"),
			},
			Run: imageBlend,
		},
		{
			Name: "ResizeImageMaskNode", Display: "Resize Image/Mask", Module: processing, Category: "image/transform",
			Aliases: "resize, resize image, resize mask, scale, scale image, scale mask, image resize, change size, " +
				"dimensions, shrink, enlarge",
			Description: "Resizes pictures or masks to sides, by a factor, or to an area.",
			Inputs: []graph.Input{
				graph.Match("input", "input_type", "IMAGE,MASK"), resizeTypes(),
				graph.Combo("scale_method", "", resizeMethods()...).With("default", "area"),
			},
			Outputs: []graph.Slot{graph.MatchSlot("resized", "input_type")}, Run: resizeImageMask,
		},
		{
			Name: "BatchImagesNode", Display: "Batch Images", Module: processing, Category: "image/batch",
			Aliases: "batch, image batch, batch images, combine images, merge images, stack images", Essential: "Image Tools",
			Inputs: []graph.Input{graph.Grow("images", "image", 50, image)}, Run: batchImages,
		},
		{
			Name: "ImageFlip", Display: "Flip Image", Module: "comfy_extras.nodes_images", Category: "image/transform",
			Aliases: "mirror, reflect",
			Inputs:  []graph.Input{image, graph.Combo("flip_method", "", "x-axis: vertically", "y-axis: horizontally")},
			Run:     imageFlip,
		},
		{
			Name: "ImageCompositeMasked", Display: "Image Composite Masked", Module: "comfy_extras.nodes_mask",
			Category: "image/compositing", Aliases: "overlay, layer, paste image, images composition",
			Inputs: []graph.Input{
				graph.Link("destination", "IMAGE", ""), graph.Link("source", "IMAGE", ""), pixels("x", 0, 0, 1),
				pixels("y", 0, 0, 1), graph.Bool("resize_source", "", false), graph.Link("mask", "MASK", "").AsOptional(),
			},
			Run: compositeMasked,
		},
		{
			Name: "JoinImageWithAlpha", Display: "Join Image with Alpha", Module: "comfy_extras.nodes_compositing",
			Category: "image/compositing", Aliases: "add transparency, apply alpha, composite alpha, RGBA",
			Inputs: []graph.Input{image, graph.Link("alpha", "MASK", "")}, Run: joinAlpha,
		},
		{
			Name: "SplitImageWithAlpha", Display: "Split Image with Alpha", Module: "comfy_extras.nodes_compositing",
			Category: "image/compositing", Aliases: "extract alpha, separate transparency, remove alpha",
			Inputs: []graph.Input{image}, Outputs: graph.Slots("IMAGE", "MASK"), Run: splitAlpha,
		},
	})
}

// imagePad pads the pictures with gray. The mask is 1 in the padding and falls off quadratically inside the picture,
// from padded edges only.
func imagePad(c *graph.Call) ([]any, error) {
	im, left, top, feather := c.Image("image"), c.Whole("left"), c.Whole("top"), c.Whole("feathering")
	right, bottom := c.Whole("right"), c.Whole("bottom")
	y, x := im.Y+top+bottom, im.X+left+right
	if err := checkSize("left", im.B, y, x, im.C); err != nil {
		return nil, err
	}
	out := framed(im, y, x, top, left, 0.5)
	mask := &picture.Mask{B: 1, Y: out.Y, X: out.X, Data: filled(out.Y*out.X, 1)}
	distance := func(i, n, before, after int) int { // to the nearest padded edge, n if no edge is padded
		d := n
		if before != 0 {
			d = min(d, i)
		}
		if after != 0 {
			d = min(d, n-i)
		}
		return d
	}
	soft := feather > 0 && 2*feather < im.Y && 2*feather < im.X
	for r := range im.Y {
		line := mask.Data[(top+r)*out.X+left:][:im.X]
		for k := range line {
			d := min(distance(r, im.Y, top, bottom), distance(k, im.X, left, right))
			line[k] = 0
			if soft && d < feather {
				v := float64(feather-d) / float64(feather)
				line[k] = float32(v * v)
			}
		}
	}
	return []any{out, mask}, nil
}

func filled(n int, v float32) []float32 { return slices.Repeat([]float32{v}, n) }

// inverted returns 1 - v.
func inverted(v []float32) []float32 {
	out := make([]float32, len(v))
	for i := range v {
		out[i] = 1 - v[i]
	}
	return out
}

func imageInvert(c *graph.Call) ([]any, error) {
	im := *c.Image("image")
	im.Data = inverted(im.Data)
	return []any{&im}, nil
}

// imageBatch appends the second batch to the first, scaled to its size (bilinear, center crop). If only one of them has
// alpha, the other becomes opaque RGBA.
func imageBatch(c *graph.Call) ([]any, error) {
	a, b := c.Image("image1"), c.Image("image2")
	a, b = a.Widened(b.C), b.Widened(a.C)
	b, err := fitted(b, a.X, a.Y, resample.Bilinear, resample.CropCenter, "image2")
	if err != nil {
		return nil, err
	}
	if err := checkSize("image2", a.B+b.B, a.Y, a.X, a.C); err != nil {
		return nil, err
	}
	return []any{&picture.Image{B: a.B + b.B, Y: a.Y, X: a.X, C: a.C, Data: slices.Concat(a.Data, b.Data)}}, nil
}

func emptyImage(c *graph.Call) ([]any, error) {
	w, h, b, color := c.Whole("width"), c.Whole("height"), c.Whole("batch_size"), c.Whole("color")
	if err := checkSize("batch_size", b, h, w, 3); err != nil {
		return nil, err
	}
	im := &picture.Image{B: b, Y: h, X: w, C: 3, Data: make([]float32, b*h*w*3)}
	for i := range im.Data {
		im.Data[i] = float32(float64(color>>(16-8*(i%3))&0xFF) / 0xFF)
	}
	return []any{im}, nil
}

// imageBlend scales the second picture to the size of the first (bicubic, center crop) and mixes the first with the
// blend of both. If only the first has alpha, ComfyUI crashes; here that is a proper error.
func imageBlend(c *graph.Call) ([]any, error) {
	a, b, f := c.Image("image1"), c.Image("image2"), c.Decimal("blend_factor")
	blend := blendModes()[c.Str("blend_mode")]
	if blend == nil {
		return nil, fault.Bad("blend_mode", "%q is not one of normal, multiply, screen, overlay, soft_light, difference",
			c.Str("blend_mode"))
	}
	if b.C > a.C {
		b = b.First(a.C)
	}
	if err := sameBatch("image2", a.C, b.C, a.B, b.B); err != nil {
		return nil, err
	}
	b, err := fitted(b, a.X, a.Y, resample.Bicubic, resample.CropCenter, "image2")
	if err != nil {
		return nil, err
	}
	out := &picture.Image{B: max(a.B, b.B), Y: a.Y, X: a.X, C: a.C}
	if err := checkSize("image1", out.B, out.Y, out.X, out.C); err != nil {
		return nil, err
	}
	out.Data = make([]float32, out.B*out.Y*out.X*out.C)
	wa, wb := float32(1-f), float32(f)
	for i := range out.Data {
		x := a.Data[i%len(a.Data)]
		v := float32(x*wa) + float32(blend(x, b.Data[i%len(b.Data)])*wb)
		out.Data[i] = min(max(v, 0), 1)
	}
	return []any{out}, nil
}

// blendModes returns the formulas of ImageBlend (the usual ones, as in W3C Compositing and Blending Level 1, section 9,
// whose overlay tests the backdrop; here it tests the first picture). Every product is rounded to f32, as in torch.
func blendModes() map[string]func(a, b float32) float32 {
	screen := func(a, b, scale float32) float32 { return 1 - float32(float32(scale*(1-a))*(1-b)) }
	return map[string]func(a, b float32) float32{
		"normal":     func(_, b float32) float32 { return b },
		"multiply":   func(a, b float32) float32 { return a * b },
		"screen":     func(a, b float32) float32 { return screen(a, b, 1) },
		"difference": func(a, b float32) float32 { return a - b },
		"overlay": func(a, b float32) float32 {
			if a <= 0.5 {
				return float32(2*a) * b
			}
			return screen(a, b, 2)
		},
		"soft_light": func(a, b float32) float32 {
			if b <= 0.5 {
				return a - float32(float32((1-float32(2*b))*a)*(1-a))
			}
			g := float32(math.Sqrt(float64(a)))
			if a <= 0.25 {
				g = (float32((float32(16*a)-12)*a) + 4) * a
			}
			return a + float32((float32(2*b)-1)*(g-a))
		},
	}
}

// canny detects edges. Inputs that kornia would reject are proper errors.
func canny(c *graph.Call) ([]any, error) {
	im, low, high := c.Image("image"), c.Decimal("low_threshold"), c.Decimal("high_threshold")
	switch {
	case low > high:
		return nil, fault.Bad("low_threshold", "%v is above high_threshold %v", low, high)
	case im.C != 3:
		return nil, fault.Bad("image", "%d channels, want 3: SplitImageWithAlpha takes alpha off", im.C)
	case im.Y < picture.CannySide || im.X < picture.CannySide:
		return nil, fault.At(fault.BadInput, "image", "image: a picture of %d x %d, want at least %d x %[3]d", im.X, im.Y,
			picture.CannySide)
	}
	return []any{picture.Canny(im, float32(low), float32(high))}, nil
}

// resizeMethods lists the interpolation methods in ComfyUI's order.
func resizeMethods() []string {
	return []string{"nearest-exact", "bilinear", "area", "bicubic", "lanczos"}
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

// asImage returns the named input as pictures; masks become pictures with one channel.
func asImage(c *graph.Call, name string) *picture.Image {
	switch v := c.Raw(name).(type) {
	case *picture.Image:
		return v
	case *picture.Mask:
		return v.Image()
	}
	panic(fault.Bad(name, "takes IMAGE or MASK, got %s", graph.Describe(c.Raw(name))))
}

// resizeImageMask resizes to the size that the chosen alternative gives. "scale to multiple" keeps the aspect ratio and
// crops the excess.
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
	out, err := resizedImage(im, x, y, method, resample.CropDisabled, "resize_type")
	if err != nil {
		return nil, err
	}
	return out.Cut((x-w)/2, (y-h)/2, w, h), nil
}

// batchImages concatenates pictures, all scaled to the size of the first and with alpha if any of them has it.
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
	im := *c.Image("image")
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

// compositeMasked pastes the source at (x, y) onto the destination, weighted by the mask and clipped at the edges.
func compositeMasked(c *graph.Call) ([]any, error) {
	to, from := c.Image("destination"), c.Image("source")
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
	return []any{pasted(to, from, mask, 1, c.Whole("x"), c.Whole("y"))}, nil
}

// pasted returns to with from at (left, top), weighted by the mask and clipped at the edges. planes is the number of
// pictures of a batch that share a mask.
func pasted(to, from *picture.Image, mask *picture.Mask, planes, left, top int) *picture.Image {
	out := *to
	out.Data = slices.Clone(to.Data)
	for b := range to.B {
		for y := range min(from.Y, to.Y-top) {
			for x := range min(from.X, to.X-left) {
				m := mask.Data[(b/planes%mask.B*from.Y+y)*from.X+x]
				src := from.Data[((b%from.B*from.Y+y)*from.X+x)*from.C:][:to.C]
				dst := out.Data[((b*to.Y+top+y)*to.X+left+x)*to.C:][:to.C]
				for i := range dst {
					dst[i] = float32(m*src[i]) + float32((1-m)*dst[i])
				}
			}
		}
	}
	return &out
}

// joinAlpha adds 1 - alpha as a fourth channel.
func joinAlpha(c *graph.Call) ([]any, error) {
	im := c.Image("image")
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
	im := c.Image("image")
	alpha := im.Widened(4).Channel(3)
	return []any{im.First(3), alpha.Like(inverted(alpha.Data))}, nil
}
