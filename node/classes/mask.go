package classes

import (
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
	})
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
