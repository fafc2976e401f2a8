package node

import (
	"slices"

	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// maskClasses are the rows that make and change masks.
func maskClasses() []Class {
	const module = "comfy_extras.nodes_mask"
	side := func(name string) Input {
		return number(name, "INT", "in pixels", "default", int64(512), "min", int64(1), "max", int64(16384), "step", int64(1))
	}
	edge := func(name string) Input {
		return number(name, "INT", "in pixels", "default", int64(0), "min", int64(0), "max", int64(16384), "step", int64(1))
	}
	in := linkIn("mask", "MASK", "")
	return []Class{
		{
			Name: "SolidMask", Module: module, Category: "mask", NewStyle: true,
			Inputs:  []Input{number("value", "FLOAT", "", "default", 1.0, "min", 0.0, "max", 1.0, "step", 0.01), side("width"), side("height")},
			Outputs: slots("MASK"), Run: func(c *Call) ([]any, error) {
				v, x, y := c.decimal("value"), c.whole("width"), c.whole("height")
				return []any{&picture.Mask{B: 1, Y: y, X: x, Data: filled(y*x, float32(v))}}, nil
			},
		},
		{
			Name: "InvertMask", Module: module, Category: "mask", NewStyle: true,
			Inputs: []Input{in}, Outputs: slots("MASK"), Run: func(c *Call) ([]any, error) {
				m := *arg[*picture.Mask](c, "mask")
				m.Data = inverted(m.Data)
				return []any{&m}, nil
			},
		},
		{
			Name: "MaskToImage", Display: "Convert Mask to Image", Module: module, Category: "mask", NewStyle: true,
			Inputs: []Input{in}, Outputs: slots("IMAGE"), Run: maskToImage,
		},
		{
			Name: "ImageToMask", Display: "Convert Image to Mask", Module: module, Category: "mask", NewStyle: true,
			Inputs: []Input{linkIn("image", "IMAGE", ""), combo("channel", "", "red", "green", "blue", "alpha")}, Outputs: slots("MASK"), Run: imageToMask,
		},
		{
			Name: "LoadImageMask", Display: "Load Image (as Mask)", Module: "nodes", Category: "mask",
			Inputs:  []Input{fileIn("image", files.KindInputImage).with("image_upload", true), bareCombo("channel", "alpha", "red", "green", "blue")},
			Outputs: slots("MASK"), Run: loadImageMask, Own: []string{"image"}, Check: checkFile("image", "Invalid image file: "), Change: fileChange("image"),
		},
		{
			Name: "GrowMask", Display: "Grow Mask", Module: module, Category: "mask", NewStyle: true,
			Inputs: []Input{
				in, number("expand", "INT", "in pixels; below 0 shrinks", "default", int64(0), "min", int64(-16384), "max", int64(16384), "step", int64(1)),
				number("tapered_corners", "BOOLEAN", "", "default", true),
			},
			Outputs: slots("MASK"), Run: growMask,
		},
		{
			Name: "FeatherMask", Module: module, Category: "mask", NewStyle: true,
			Inputs: []Input{in, edge("left"), edge("top"), edge("right"), edge("bottom")}, Outputs: slots("MASK"), Run: func(c *Call) ([]any, error) {
				m := c.mask("mask")
				return []any{m.Like(resample.Feather(m.Data, m.B, m.Y, m.X, c.whole("left"), c.whole("top"), c.whole("right"), c.whole("bottom")))}, nil
			},
		},
	}
}

// growMask grows some pixels at a time, so that a large mask can be cancelled, and stops where nothing changes any more.
func growMask(c *Call) ([]any, error) {
	m, left, tapered := c.mask("mask"), c.whole("expand"), c.flag("tapered_corners")
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

// maxGrowWork is how many pixels growMask looks at between two looks at the context.
const maxGrowWork = 1 << 24

// maskToImage repeats the mask in three channels.
func maskToImage(c *Call) ([]any, error) {
	m := c.mask("mask")
	if err := checkSize("mask", m.B, m.Y, m.X, 3); err != nil {
		return nil, err
	}
	im := &picture.Image{B: m.B, Y: m.Y, X: m.X, C: 3, Data: make([]float32, 0, 3*len(m.Data))}
	for _, v := range m.Data {
		im.Data = append(im.Data, v, v, v)
	}
	return []any{im}, nil
}

func imageToMask(c *Call) ([]any, error) {
	im, channel := arg[*picture.Image](c, "image"), c.str("channel")
	at, known := map[string]int{"red": 0, "green": 1, "blue": 2, "alpha": 3}[channel]
	if !known || at >= im.C {
		return nil, fault.At(fault.CodeBadInput, "channel", "channel: the picture has no %s; it has %d channels (red, green, blue, alpha in this order)", channel, im.C)
	}
	return []any{im.Channel(at)}, nil
}

// loadImageMask reads one channel of the first frame of a picture file; alpha is turned round, and a file without alpha gives zeros.
func loadImageMask(c *Call) ([]any, error) {
	name := c.str("image")
	data, err := inputFile(c, "image", name)
	if err != nil {
		return nil, err
	}
	im, alpha, err := picture.Decode(data)
	if err != nil {
		return nil, fault.At(fault.CodeBadImage, "image", "image: %s: %v", name, err)
	}
	n := im.Y * im.X
	m := im
	m.B, m.Data = 1, im.Data[:n*im.C]
	at, colour := map[string]int{"red": 0, "green": 1, "blue": 2}[c.str("channel")]
	switch {
	case colour:
		return []any{m.Channel(at)}, nil
	case alpha.Y == im.Y && alpha.X == im.X:
		return []any{&picture.Mask{B: 1, Y: im.Y, X: im.X, Data: alpha.Data[:n]}}, nil
	}
	return []any{&picture.Mask{B: 1, Y: im.Y, X: im.X, Data: make([]float32, n)}}, nil
}
