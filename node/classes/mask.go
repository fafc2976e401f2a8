package classes

import (
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// maskClasses returns the classes that make and modify masks.
func maskClasses() []graph.Class {
	const module = "comfy_extras.nodes_mask"
	in := graph.Link("mask", "MASK", "")
	return graph.Rows(graph.Class{Category: "image/mask"}, []graph.Class{
		{
			Name: "SolidMask", Display: "Create Solid Mask", Module: module,
			Inputs: []graph.Input{
				graph.Float("value", "", 1, 0, 1, 0.01), pixels("width", 512, 1, 1), pixels("height", 512, 1, 1),
			},
			Outputs: graph.Slots("MASK"), Run: func(c *graph.Call) ([]any, error) {
				v, x, y := c.Decimal("value"), c.Whole("width"), c.Whole("height")
				return []any{&picture.Mask{B: 1, Y: y, X: x, Data: filled(y*x, float32(v))}}, nil
			},
		},
		{
			Name: "InvertMask", Display: "Invert Mask", Module: module, Aliases: "reverse mask, flip mask",
			Inputs: []graph.Input{in}, Outputs: graph.Slots("MASK"), Run: func(c *graph.Call) ([]any, error) {
				m := graph.Arg[*picture.Mask](c, "mask")
				return []any{m.Like(inverted(m.Data))}, nil
			},
		},
		{
			Name: "MaskToImage", Display: "Convert Mask to Image", Module: module, Aliases: "convert mask",
			Inputs: []graph.Input{in}, Outputs: graph.Slots("IMAGE"), Run: maskToImage,
		},
		{
			Name: "ImageToMask", Display: "Convert Image to Mask", Module: module, Aliases: "extract channel, channel to mask",
			Inputs: []graph.Input{graph.Link("image", "IMAGE", ""), graph.Combo("channel", "", "red", "green", "blue",
				"alpha")},
			Outputs: graph.Slots("MASK"), Run: imageToMask,
		},
		{
			Name: "LoadImageMask", Display: "Load Image (as Mask)", Category: "image",
			Aliases: "import mask, alpha mask, channel mask", Essential: "Image Tools",
			Inputs: []graph.Input{
				graph.File("image", files.KindInputImage).With("image_upload", true),
				graph.BareCombo("channel", "alpha", "red", "green", "blue"),
			},
			Outputs: graph.Slots("MASK"), Run: loadImageMask, SelfChecked: []string{"image"},
			Check: checkFile("image", "Invalid image file: "), Change: fileChange("image"),
		},
		{
			Name: "GrowMask", Display: "Grow Mask", Module: module, Aliases: "expand mask, shrink mask",
			Inputs: []graph.Input{
				in, graph.Int("expand", "in pixels; below 0 shrinks", 0, -16384, 16384, 1),
				graph.Bool("tapered_corners", "", true).AsAdvanced(),
			},
			Outputs: graph.Slots("MASK"), Run: growMask,
		},
		{
			Name: "FeatherMask", Display: "Feather Mask", Module: module,
			Aliases: "soft edge mask, blur mask edges, gradient mask edge",
			Inputs: []graph.Input{
				in, pixels("left", 0, 0, 1), pixels("top", 0, 0, 1), pixels("right", 0, 0, 1), pixels("bottom", 0, 0, 1),
			},
			Outputs: graph.Slots("MASK"), Run: func(c *graph.Call) ([]any, error) {
				m := c.Mask("mask")
				return []any{m.Like(resample.Feather(m.Data, m.B, m.Y, m.X, c.Whole("left"), c.Whole("top"), c.Whole("right"),
					c.Whole("bottom")))}, nil
			},
		},
		{
			Name: "ThresholdMask", Display: "Threshold Mask", Module: module, Aliases: "binary mask",
			Inputs:  []graph.Input{in, graph.Float("value", "more becomes 1, the rest 0", 0.5, 0, 1, 0.01)},
			Outputs: graph.Slots("MASK"), Run: func(c *graph.Call) ([]any, error) {
				m, v := c.Mask("mask"), float32(c.Decimal("value"))
				return []any{m.Like(mapped(m.Data, func(x float32) float32 { return one(x > v) }))}, nil
			},
		},
		{
			Name: "CropMask", Display: "Crop Mask", Module: module, Aliases: "cut mask, extract mask region, mask slice",
			Inputs: []graph.Input{
				in, pixels("x", 0, 0, 1), pixels("y", 0, 0, 1), pixels("width", 512, 1, 1), pixels("height", 512, 1, 1),
			},
			Outputs: graph.Slots("MASK"), Run: cropMask,
		},
		{
			Name: "MaskComposite", Display: "Combine Masks", Module: module,
			Aliases: "combine masks, blend masks, layer masks, masks composition",
			Inputs: []graph.Input{
				graph.Link("destination", "MASK", ""), graph.Link("source", "MASK", ""), pixels("x", 0, 0, 1),
				pixels("y", 0, 0, 1), graph.Combo("operation", "", "multiply", "add", "subtract", "and", "or", "xor"),
			},
			Outputs: graph.Slots("MASK"), Run: maskComposite,
		},
		{
			Name: "ImageColorToMask", Display: "Convert Image Color to Mask", Module: module,
			Aliases: "color keying, chroma key",
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""), graph.Int("color", "0xRRGGBB", 0, 0, 0xFFFFFF, 1).With("display", "number"),
			},
			Outputs: graph.Slots("MASK"), Run: colorToMask,
		},
		{
			Name: "BatchMasksNode", Display: "Batch Masks", Module: "comfy_extras.nodes_post_processing",
			Aliases: "combine masks, stack masks, merge masks", Inputs: []graph.Input{graph.Grow("masks", "mask", 50, in)},
			Outputs: graph.Slots("MASK"), Run: batchMasks,
		},
	})
}

// mapped returns f of every value.
func mapped(v []float32, f func(float32) float32) []float32 {
	out := make([]float32, len(v))
	for i := range v {
		out[i] = f(v[i])
	}
	return out
}

// one returns 1 for true and 0 for false.
func one(is bool) float32 {
	if is {
		return 1
	}
	return 0
}

func cropMask(c *graph.Call) ([]any, error) {
	m, x, y := c.Mask("mask"), c.Whole("x"), c.Whole("y")
	for name, at := range map[string][2]int{"x": {x, m.X}, "y": {y, m.Y}} {
		if at[0] >= at[1] {
			return nil, fault.Bad(name, "%d is outside the mask of %d x %d", at[0], m.X, m.Y)
		}
	}
	w, h := min(c.Whole("width"), m.X-x), min(c.Whole("height"), m.Y-y)
	return []any{m.Image().Cut(x, y, w, h).Channel(0)}, nil
}

// maskComposite combines the source with the part of the destination that it covers at (x, y), and limits all values to
// 0..1. A source outside changes nothing (ComfyUI: an error for most).
func maskComposite(c *graph.Call) ([]any, error) {
	to, from, left, top := c.Mask("destination"), c.Mask("source"), c.Whole("x"), c.Whole("y")
	if from.B != 1 && from.B != to.B {
		return nil, fault.Bad("source", "has a batch of %d, destination one of %d: want 1 or %d", from.B, to.B, to.B)
	}
	set := func(v float32) bool { return math.RoundToEven(float64(v)) != 0 }
	operation := map[string]func(a, b float32) float32{
		"multiply": func(a, b float32) float32 { return a * b },
		"add":      func(a, b float32) float32 { return a + b },
		"subtract": func(a, b float32) float32 { return a - b },
		"and":      func(a, b float32) float32 { return one(set(a) && set(b)) },
		"or":       func(a, b float32) float32 { return one(set(a) || set(b)) },
		"xor":      func(a, b float32) float32 { return one(set(a) != set(b)) },
	}[c.Str("operation")]
	if operation == nil {
		return nil, fault.Bad("operation", "%q is not one of multiply, add, subtract, and, or, xor", c.Str("operation"))
	}
	out := slices.Clone(to.Data)
	for b := range to.B {
		for y := range min(from.Y, to.Y-top) {
			for x := range min(from.X, to.X-left) {
				at := (b*to.Y+top+y)*to.X + left + x
				out[at] = operation(out[at], from.Data[(b%from.B*from.Y+y)*from.X+x])
			}
		}
	}
	return []any{to.Like(mapped(out, func(v float32) float32 { return min(max(v, 0), 1) }))}, nil
}

// colorToMask gives 1 where a pixel is the color in 8 bits.
func colorToMask(c *graph.Call) ([]any, error) {
	im, color := c.Image("image"), c.Whole("color")
	if im.C < 3 {
		return nil, fault.Bad("image", "has %d channels, want 3", im.C)
	}
	m := im.Channel(0)
	for i := range m.Data {
		rgb := 0
		for _, v := range im.Data[i*im.C:][:3] {
			rgb = rgb<<8 | rounded(float64(min(max(v, 0), 1)*255))
		}
		m.Data[i] = one(rgb == color)
	}
	return []any{m}, nil
}

// batchMasks concatenates masks, all scaled to the size of the first.
func batchMasks(c *graph.Call) ([]any, error) {
	names, values := c.Grown("masks")
	out := *values[0].(*picture.Mask)
	out.Data = slices.Clone(out.Data)
	for i, v := range values[1:] {
		im, err := fitted(v.(*picture.Mask).Image(), out.X, out.Y, resample.Bilinear, resample.CropCenter,
			"masks."+names[i+1])
		if err != nil {
			return nil, err
		}
		out.B += im.B
		if err := checkSize("masks."+names[i+1], out.B, out.Y, out.X); err != nil {
			return nil, err
		}
		out.Data = append(out.Data, im.Data...)
	}
	return []any{&out}, nil
}

// growMask grows in portions, so that a large mask can be canceled, and stops early when nothing changes any more.
func growMask(c *graph.Call) ([]any, error) {
	m, left, tapered := c.Mask("mask"), c.Whole("expand"), c.Flag("tapered_corners")
	portion := max(1, maxGrowWork/len(m.Data))
	for left != 0 {
		if err := c.Context.Err(); err != nil {
			return nil, err
		}
		n := min(max(left, -portion), portion)
		next := m.Like(resample.Grow(m.Data, m.B, m.Y, m.X, n, tapered))
		if left -= n; slices.Equal(next.Data, m.Data) {
			break
		}
		m = next
	}
	return []any{m}, nil
}

// maxGrowWork is the number of pixels that growMask processes between two checks for cancellation.
const maxGrowWork = 1 << 24

// maskToImage repeats the mask in three channels.
func maskToImage(c *graph.Call) ([]any, error) {
	m := c.Mask("mask")
	if err := checkSize("mask", m.B, m.Y, m.X, 3); err != nil {
		return nil, err
	}
	return []any{grey(m)}, nil
}

// grey converts masks to RGB pictures.
func grey(m *picture.Mask) *picture.Image {
	im := &picture.Image{B: m.B, Y: m.Y, X: m.X, C: 3, Data: make([]float32, 0, 3*len(m.Data))}
	for _, v := range m.Data {
		im.Data = append(im.Data, v, v, v)
	}
	return im
}

func imageToMask(c *graph.Call) ([]any, error) {
	im, channel := c.Image("image"), c.Str("channel")
	at, known := map[string]int{"red": 0, "green": 1, "blue": 2, "alpha": 3}[channel]
	if !known || at >= im.C {
		return nil, fault.Bad("channel", "the picture has no %s; it has %d channels (red, green, blue, alpha in this order)",
			channel, im.C)
	}
	return []any{im.Channel(at)}, nil
}

// loadImageMask returns one channel of a picture file: a colour of all frames, or what LoadImage gives as mask.
func loadImageMask(c *graph.Call) ([]any, error) {
	im, mask, err := decoded(c)
	if err != nil {
		return nil, err
	}
	if at, colour := map[string]int{"red": 0, "green": 1, "blue": 2}[c.Str("channel")]; colour {
		return []any{im.Channel(at)}, nil
	}
	return []any{mask}, nil
}
