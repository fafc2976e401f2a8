package classes

import (
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/parallel"
)

// transformLatentClasses are the rows that move the pixels of latents: crop, flip and rotate. Noise masks stay as they
// are,
// as in ComfyUI.
func transformLatentClasses() []graph.Class {
	return []graph.Class{
		{
			Name: "LatentCrop", Display: "Crop Latent", Module: "nodes", Category: "model/latent/transform",
			Aliases: "trim latent, cut latent",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), pixels("width", 512, 64, 8), pixels("height", 512, 64, 8),
				pixels("x", 0, 0, 8), pixels("y", 0, 0, 8),
			},
			Outputs: graph.Slots("LATENT"), Run: latentCrop,
		},
		{
			Name: "LatentFlip", Display: "Flip Latent", Module: "nodes", Category: "model/latent/transform",
			Aliases: "mirror latent",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"),
				graph.BareCombo("flip_method", "x-axis: vertically", "y-axis: horizontally"),
			},
			Outputs: graph.Slots("LATENT"), Run: latentFlip,
		},
		{
			Name: "LatentRotate", Display: "Rotate Latent", Module: "nodes", Category: "model/latent/transform",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"),
				graph.BareCombo("rotation", "none", "90 degrees", "180 degrees", "270 degrees"),
			},
			Outputs: graph.Slots("LATENT"), Run: latentRotate,
		},
	}
}

// latentCrop moves the origin so that 8 rows and columns are left. In a latent smaller than that the origin becomes
// negative and counts from the other end, as Python slices do.
func latentCrop(c *graph.Call) ([]any, error) {
	l := c.Latent("samples")
	s := l.Samples
	x, y := min(c.Whole("x")/8, s.X-8), min(c.Whole("y")/8, s.Y-8)
	left, right := sliced(s.X, x, x+c.Whole("width")/8)
	top, bottom := sliced(s.Y, y, y+c.Whole("height")/8)
	if left == right || top == bottom {
		return nil, fault.Bad("samples", "nothing of a latent of %d x %d is inside the cut", s.X, s.Y)
	}
	return []any{l.With(moved(s, bottom-top, right-left, func(r, k int) (int, int) { return top + r, left + k }))}, nil
}

func latentFlip(c *graph.Call) ([]any, error) {
	l := c.Latent("samples")
	s := l.Samples
	if c.Str("flip_method") == "x-axis: vertically" {
		return []any{l.With(moved(s, s.Y, s.X, func(r, k int) (int, int) { return s.Y - 1 - r, k }))}, nil
	}
	return []any{l.With(moved(s, s.Y, s.X, func(r, k int) (int, int) { return r, s.X - 1 - k }))}, nil
}

// latentRotate turns clockwise.
func latentRotate(c *graph.Call) ([]any, error) {
	l := c.Latent("samples")
	s := l.Samples
	switch c.Str("rotation") {
	case "90 degrees":
		return []any{l.With(moved(s, s.X, s.Y, func(r, k int) (int, int) { return s.Y - 1 - k, r }))}, nil
	case "180 degrees":
		return []any{l.With(moved(s, s.Y, s.X, func(r, k int) (int, int) { return s.Y - 1 - r, s.X - 1 - k }))}, nil
	case "270 degrees":
		return []any{l.With(moved(s, s.X, s.Y, func(r, k int) (int, int) { return k, s.X - 1 - r }))}, nil
	}
	return []any{l}, nil
}

// moved makes latents of y rows and x columns whose pixel (r, k) is the one of s that from names.
func moved(s parallel.Latent, y, x int, from func(r, k int) (row, column int)) parallel.Latent {
	out := parallel.NewLatent(s.B, s.C, y, x)
	for p := range s.B * s.C {
		plane, source := out.Data[p*y*x:], s.Data[p*s.Y*s.X:]
		for r := range y {
			for k := range x {
				row, column := from(r, k)
				plane[r*x+k] = source[row*s.X+column]
			}
		}
	}
	return out
}
