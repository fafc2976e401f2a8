package classes

import (
	"math"
	"slices"

	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// pixels is a length or a place in a picture.
func pixels(name string, preset, lo, step int64) graph.Input {
	return graph.Int(name, "in pixels", preset, lo, 16384, step)
}

// imageOpClasses are the rows that make and combine pictures.
func imageOpClasses() []graph.Class {
	return []graph.Class{
		{
			Name: "ImagePadForOutpaint", Display: "Pad Image for Outpainting", Module: "nodes", Category: "image/transform",
			Aliases: "extend canvas, expand image",
			Inputs: []graph.Input{
				graph.Bare("image", "IMAGE"), pixels("left", 0, 0, 8), pixels("top", 0, 0, 8),
				pixels("right", 0, 0, 8), pixels("bottom", 0, 0, 8),
				graph.Int("feathering", "how far the mask reaches into the picture", 40, 0, 16384, 1).AsAdvanced(),
			},
			Outputs: graph.Slots("IMAGE", "MASK"), Run: imagePad,
		},
		{
			Name: "ImageInvert", Display: "Invert Image Colors", Module: "nodes", Category: "image/color",
			Aliases: "reverse colors", Essential: "Image Tools",
			Inputs: []graph.Input{graph.Bare("image", "IMAGE")}, Outputs: graph.Slots("IMAGE"), Run: imageInvert,
		},
		{
			Name: "ImageBatch", Display: "Batch Images (DEPRECATED)", Module: "nodes", Category: "image/batch",
			Aliases: "combine images, merge images, stack images", Deprecated: true,
			Inputs:  []graph.Input{graph.Bare("image1", "IMAGE"), graph.Bare("image2", "IMAGE")},
			Outputs: graph.Slots("IMAGE"), Run: imageBatch,
		},
		{
			Name: "EmptyImage", Display: "Empty Image", Module: "nodes", Category: "image",
			Inputs: []graph.Input{
				pixels("width", 512, 1, 1), pixels("height", 512, 1, 1), graph.Int("batch_size", "", 1, 1, 4096, 0),
				graph.Int("color", "0xRRGGBB", 0, 0, 0xFFFFFF, 1).With("display", "color"),
			},
			Outputs: graph.Slots("IMAGE"), Run: emptyImage,
		},
		{
			Name: "Canny", Display: "Detect Edges (Canny)", Module: "comfy_extras.nodes_canny", Category: "image/filters",
			Aliases: "edge detection, outline, contour detection, line art", Essential: "Image Tools", NewStyle: true,
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""),
				graph.Float("low_threshold", "weaker edges are none", 0.4, 0.01, 0.99, 0.01),
				graph.Float("high_threshold", "edges above it draw weaker ones in", 0.8, 0.01, 0.99, 0.01),
			},
			Outputs: graph.Slots("IMAGE"), Run: canny,
		},
		{
			Name: "ImageBlend", Display: "Blend Images", Module: "comfy_extras.nodes_post_processing", Category: "image/filters",
			Aliases: "mix images", Essential: "Image Tools", NewStyle: true,
			Inputs: []graph.Input{
				graph.Link("image1", "IMAGE", ""), graph.Link("image2", "IMAGE", ""),
				graph.Float("blend_factor", "part of the blended picture", 0.5, 0, 1, 0.01),
				graph.Combo("blend_mode", "", "normal", "multiply", "screen", "overlay", "soft_light", "difference"),
			},
			Outputs: graph.Slots("IMAGE"), Run: imageBlend,
		},
	}
}

// imagePad puts grey around the pictures. The mask is 1 there and falls with the square of the distance inside, towards
// padded edges only.
func imagePad(c *graph.Call) ([]any, error) {
	im, left, top, feather := graph.Arg[*picture.Image](c, "image"), c.Whole("left"), c.Whole("top"), c.Whole("feathering")
	right, bottom := c.Whole("right"), c.Whole("bottom")
	out := &picture.Image{B: im.B, Y: im.Y + top + bottom, X: im.X + left + right, C: im.C}
	if err := checkSize("left", out.B, out.Y, out.X, out.C); err != nil {
		return nil, err
	}
	out.Data = filled(out.B*out.Y*out.X*out.C, 0.5)
	for i := range im.B * im.Y {
		at := ((i/im.Y*out.Y+top+i%im.Y)*out.X + left) * im.C
		copy(out.Data[at:], im.Data[i*im.X*im.C:(i+1)*im.X*im.C])
	}
	mask := &picture.Mask{B: 1, Y: out.Y, X: out.X, Data: filled(out.Y*out.X, 1)}
	distance := func(i, n, before, after int) int { // to the nearest padded edge, n where none is
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

// filled returns n times v.
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
	im := *graph.Arg[*picture.Image](c, "image")
	im.Data = inverted(im.Data)
	return []any{&im}, nil
}

// imageBatch puts the second batch behind the first, scaled to its size (bilinear, center crop). Where one has alpha,
// the other gets an opaque one.
func imageBatch(c *graph.Call) ([]any, error) {
	a, b := graph.Arg[*picture.Image](c, "image1"), graph.Arg[*picture.Image](c, "image2")
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
// blend of both. ComfyUI fails where only the first has alpha; here that is refused in words.
func imageBlend(c *graph.Call) ([]any, error) {
	a, b, f := graph.Arg[*picture.Image](c, "image1"), graph.Arg[*picture.Image](c, "image2"), c.Decimal("blend_factor")
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

// blendModes are the formulas of ImageBlend (the usual ones, as in W3C Compositing and Blending Level 1, section 9;
// there overlay looks at the backdrop, here at the first picture). Every product is rounded to f32 as torch does.
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

// canny draws edges; what kornia refuses is refused in words.
func canny(c *graph.Call) ([]any, error) {
	im, low, high := graph.Arg[*picture.Image](c, "image"), c.Decimal("low_threshold"), c.Decimal("high_threshold")
	switch {
	case low > high:
		return nil, fault.Bad("low_threshold", "%v is above high_threshold %v", low, high)
	case im.C != 3:
		return nil, fault.Bad("image", "%d channels, want 3: SplitImageWithAlpha takes alpha off", im.C)
	case im.Y < picture.CannySide || im.X < picture.CannySide:
		return nil, fault.At(fault.CodeBadInput, "image", "image: a picture of %d x %d, want at least %d x %[3]d", im.X, im.Y,
			picture.CannySide)
	}
	return []any{picture.Canny(im, float32(low), float32(high))}, nil
}
