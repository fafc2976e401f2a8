package classes

import (
	"slices"

	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// stitchClasses are the rows that put pictures beside each other.
func stitchClasses() []graph.Class {
	return []graph.Class{{
		Name: "ImageStitch", Display: "Stitch Images", Module: "comfy_extras.nodes_images", Category: "image/transform",
		Aliases: "combine images, join images, concatenate images, side by side", NewStyle: true,
		Description: "Puts the second picture beside, below or above the first, with a strip between them.",
		Inputs: []graph.Input{
			graph.Link("image1", "IMAGE", ""),
			graph.Combo("direction", "", "right", "down", "left", "up").With("default", "right"),
			graph.Bool("match_image_size", "scale the second picture to the side where they meet", true),
			graph.Int("spacing_width", "in pixels", 0, 0, 1024, 2).AsAdvanced(),
			graph.Combo("spacing_color", "", "white", "black", "red", "green", "blue").With("default", "white").AsAdvanced(),
			graph.Link("image2", "IMAGE", "").AsOptional(),
		},
		Outputs: graph.Slots("IMAGE"), Run: stitch,
	}}
}

func stitch(c *graph.Call) ([]any, error) {
	a := graph.Arg[*picture.Image](c, "image1")
	if !c.Given("image2") {
		return []any{a}, nil
	}
	b, direction := graph.Arg[*picture.Image](c, "image2"), c.Str("direction")
	across := direction == "left" || direction == "right"
	b, a = lengthened(b, a.B), lengthened(a, b.B)
	if aspect := float64(b.X) / float64(b.Y); c.Flag("match_image_size") {
		x, y := int(float64(a.Y)*aspect), a.Y
		if !across {
			x, y = a.X, int(float64(a.X)/aspect)
		}
		var err error
		if b, err = resizedImage(b, x, y, string(resample.Lanczos), string(resample.CropDisabled), "image2"); err != nil {
			return nil, err
		}
	}
	y, x, channels, gap := max(a.Y, b.Y), max(a.X, b.X), max(a.C, b.C), c.Whole("spacing_width")
	gap += gap % 2
	colour := map[string][]float32{
		"white": {1, 1, 1, 1}, "black": {0, 0, 0, 1}, "red": {1, 0, 0, 1}, "green": {0, 1, 0, 1}, "blue": {0, 0, 1, 1},
	}[c.Str("spacing_color")]
	edge := float32(0) // of what is smaller, in all its channels
	if c.Str("spacing_color") == "white" {
		edge = 1
	}
	strip := &picture.Image{B: a.B, Y: y, X: gap, C: channels}
	if across {
		a, b = framed(a, y, a.X, edge), framed(b, y, b.X, edge)
	} else {
		a, b, strip.Y, strip.X = framed(a, a.Y, x, edge), framed(b, b.Y, x, edge), gap, x
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
	lines := y // of all parts alike
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

// lengthened repeats the last picture up to a batch of n.
func lengthened(im *picture.Image, n int) *picture.Image {
	if n <= im.B {
		return im
	}
	one := im.Y * im.X * im.C
	out := *im
	out.B, out.Data = n, slices.Concat(im.Data, slices.Repeat(im.Data[len(im.Data)-one:], n-im.B))
	return &out
}

// framed puts pictures in the middle of y by x pixels of a value.
func framed(im *picture.Image, y, x int, v float32) *picture.Image {
	if im.Y == y && im.X == x {
		return im
	}
	out := &picture.Image{B: im.B, Y: y, X: x, C: im.C, Data: slices.Repeat([]float32{v}, im.B*y*x*im.C)}
	top, left, n := (y-im.Y)/2, (x-im.X)/2, im.X*im.C
	for i := range im.B * im.Y {
		copy(out.Data[((i/im.Y*y+top+i%im.Y)*x+left)*im.C:], im.Data[i*n:(i+1)*n])
	}
	return out
}
