package classes

import (
	"strings"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// transformLatentClasses returns the classes that crop, flip, rotate, combine and resize latents. They keep noise masks
// unchanged, as ComfyUI does.
func transformLatentClasses() []graph.Class {
	method := graph.BareCombo("upscale_method", "nearest-exact", "bilinear", "area", "bicubic", "bislerp")
	side := func(name string) graph.Input {
		return graph.Int(name, "in pixels; 0 keeps the aspect", 512, 0, 16384, 8)
	}
	return graph.Rows(graph.Class{Category: "model/latent", Outputs: graph.Slots("LATENT")}, []graph.Class{
		{
			Name: "LatentCrop", Display: "Crop Latent", Category: "model/latent/transform", Aliases: "trim latent, cut latent",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), pixels("width", 512, 64, 8), pixels("height", 512, 64, 8),
				pixels("x", 0, 0, 8), pixels("y", 0, 0, 8),
			},
			Run: latentCrop,
		},
		{
			Name: "LatentFlip", Display: "Flip Latent", Category: "model/latent/transform", Aliases: "mirror latent",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), graph.BareCombo("flip_method", "x-axis: vertically", "y-axis: horizontally"),
			},
			Run: latentFlip,
		},
		{
			Name: "LatentRotate", Display: "Rotate Latent", Category: "model/latent/transform",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), graph.BareCombo("rotation", "none", "90 degrees", "180 degrees", "270 degrees"),
			},
			Run: latentRotate,
		},
		{
			Name: "LatentBlend", Display: "Latent Blend", Category: "experimental", Aliases: "mix latents, interpolate latents",
			Inputs: []graph.Input{
				graph.Bare("samples1", "LATENT"), graph.Bare("samples2", "LATENT"),
				graph.Number("blend_factor", "FLOAT", "part of the first", "default", 0.5, "min", int64(0), "max",
					int64(1), "step", 0.01),
			},
			Run: latentBlend,
		},
		{
			Name: "LatentComposite", Display: "Latent Composite", Aliases: "overlay latent, layer latent, paste latent",
			Inputs: []graph.Input{
				graph.Bare("samples_to", "LATENT"), graph.Bare("samples_from", "LATENT"), pixels("x", 0, 0, 8),
				pixels("y", 0, 0, 8), pixels("feather", 0, 0, 8),
			},
			Run: latentComposite,
		},
		{
			Name: "LatentCompositeMasked", Display: "Latent Composite Masked", Module: "comfy_extras.nodes_mask",
			Aliases: "overlay latent, layer latent, paste latent, inpaint latent",
			Inputs: []graph.Input{
				graph.Link("destination", "LATENT", ""), graph.Link("source", "LATENT", ""), pixels("x", 0, 0, 8),
				pixels("y", 0, 0, 8), graph.Bool("resize_source", "", false), graph.Link("mask", "MASK", "").AsOptional(),
			},
			Run: latentCompositeMasked,
		},
		{
			Name: "LatentConcat", Module: "comfy_extras.nodes_latent", Category: "model/latent/advanced",
			Aliases: "join latents, stitch latents",
			Inputs: []graph.Input{
				graph.Link("samples1", "LATENT", ""), graph.Link("samples2", "LATENT", ""),
				graph.Combo("dim", "with - the second comes first", "x", "-x", "y", "-y", "t", "-t"),
			},
			Run: latentConcat,
		},
		{
			Name: "LatentUpscale", Display: "Upscale Latent", Aliases: "enlarge latent, resize latent",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), method, side("width"), side("height"),
				graph.BareCombo("crop", "disabled", "center"),
			},
			Run: latentUpscale,
		},
		{
			Name: "LatentUpscaleBy", Display: "Upscale Latent By", Aliases: "enlarge latent, resize latent, scale latent",
			Inputs: []graph.Input{graph.Bare("samples", "LATENT"), method, graph.Float("scale_by", "", 1.5, 0.01, 8, 0.01)},
			Run:    latentUpscaleBy,
		},
	})
}

// latentCrop moves the origin so that at least 8 rows and columns remain. In a smaller latent the origin becomes
// negative and counts from the other end, as in Python slices.
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

// latentRotate rotates clockwise.
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

// moved returns latents of y rows and x columns whose pixel (r, k) is the pixel of s at from(r, k).
func moved(s request.Latent, y, x int, from func(r, k int) (row, column int)) request.Latent {
	out := request.NewLatent(s.B, s.C, y, x)
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

// latentBlend scales the second latent to the size of the first (bicubic, center crop). A batch of one is combined with
// every item of the other.
func latentBlend(c *graph.Call) ([]any, error) {
	l, f := c.Latent("samples1"), c.Decimal("blend_factor")
	a, b := l.Samples, c.Latent("samples2").Samples
	if err := sameBatch("samples2", a.C, b.C, a.B, b.B); err != nil {
		return nil, err
	}
	b, err := fittedLatent(b, a, resample.Bicubic, "samples2")
	if err != nil {
		return nil, err
	}
	out := request.NewLatent(max(a.B, b.B), a.C, a.Y, a.X)
	wa, wb := float32(f), float32(1-f)
	for i := range out.Data {
		out.Data[i] = float32(a.Data[i%len(a.Data)]*wa) + float32(b.Data[i%len(b.Data)]*wb)
	}
	return []any{l.With(out)}, nil
}

// latentCompositeMasked pastes the source at (x, y), weighted by the mask and clipped at the edges.
func latentCompositeMasked(c *graph.Call) ([]any, error) {
	l := c.Latent("destination")
	to, from := l.Samples, c.Latent("source").Samples
	if to.C != from.C {
		return nil, fault.Family("source", "has %d channels, destination %d: they must be equal", from.C, to.C)
	}
	var err error
	if c.Flag("resize_source") {
		if from, err = resizedLatent(from, to.X, to.Y, resample.Bilinear, resample.CropDisabled, "source"); err != nil {
			return nil, err
		}
	}
	mask := &picture.Mask{B: 1, Y: from.Y, X: from.X, Data: filled(from.Y*from.X, 1)}
	if c.Given("mask") {
		if mask, err = sizedMask(c.Mask("mask"), from.Y, from.X); err != nil {
			return nil, err
		}
	}
	planes := func(s request.Latent) *picture.Image {
		return &picture.Image{B: s.B * s.C, Y: s.Y, X: s.X, C: 1, Data: s.Data}
	}
	out := to
	out.Data = pasted(planes(to), planes(from), mask, to.C, c.Whole("x")/8, c.Whole("y")/8).Data
	return []any{l.With(out)}, nil
}

// latentConcat puts latents side by side, or one above the other.
func latentConcat(c *graph.Call) ([]any, error) {
	l := c.Latent("samples1")
	a, b := l.Samples, c.Latent("samples2").Samples
	axis, reversed := strings.CutPrefix(c.Str("dim"), "-")
	switch {
	case axis == "t":
		return nil, fault.Bad("dim", "pictures have no frames: want x, -x, y or -y")
	case axis == "x" && a.Y != b.Y || axis == "y" && a.X != b.X:
		return nil, fault.Bad("samples2", "%d x %d cannot be joined with %d x %d along %s", b.X, b.Y, a.X, a.Y, axis)
	}
	if err := sameBatch("samples2", a.C, b.C, 1, 1); err != nil {
		return nil, err
	}
	y, x := a.Y, a.X+b.X
	if axis == "y" {
		y, x = a.Y+b.Y, a.X
	}
	if err := checkSize("samples2", a.B, a.C, y, x); err != nil {
		return nil, err
	}
	out := request.NewLatent(a.B, a.C, y, x)
	left, top := 0, 0
	for i, s := range []request.Latent{a, b} {
		if reversed {
			s = []request.Latent{b, a}[i]
		}
		for p := range a.B * a.C {
			for r := range s.Y {
				copy(out.Data[(p*y+top+r)*x+left:], s.Data[(p%(s.B*s.C)*s.Y+r)*s.X:][:s.X])
			}
		}
		if axis == "x" {
			left = s.X
		} else {
			top = s.Y
		}
	}
	return []any{l.With(out)}, nil
}

// sameBatch returns an error for pairs that torch cannot broadcast: batches must be equal or 1.
func sameBatch(field string, wantC, gotC, wantB, gotB int) error {
	if wantC != gotC {
		return fault.Family(field, "has %d channels, the other input %d: they must be equal", gotC, wantC)
	}
	if wantB != gotB && wantB != 1 && gotB != 1 {
		return fault.Bad(field, "has a batch of %d, the other input one of %d: they must be equal or 1", gotB, wantB)
	}
	return nil
}

// latentComposite pastes samples_from at (x, y), clipped at the edges.
func latentComposite(c *graph.Call) ([]any, error) {
	l := c.Latent("samples_to")
	to, from := l.Samples, c.Latent("samples_from").Samples
	x, y, feather := c.Whole("x")/8, c.Whole("y")/8, c.Whole("feather")/8
	switch {
	case to.C != from.C:
		return nil, sameBatch("samples_from", to.C, from.C, 1, 1)
	case from.B != 1 && from.B != to.B:
		return nil, fault.Bad("samples_from", "has a batch of %d, samples_to one of %d: want 1 or %d", from.B, to.B, to.B)
	case x > to.X && from.X-(x-to.X) > 1, y > to.Y && from.Y-(y-to.Y) > 1: // the slices do not match in ComfyUI
		return nil, fault.At(fault.BadInput, "x", "x, y: %d, %d lie outside a latent of %d x %d pixels", 8*x,
			8*y, 8*to.X, 8*to.Y)
	}
	y, x = min(y, to.Y), min(x, to.X)
	h, w := min(from.Y, to.Y-y), min(from.X, to.X-x)
	mask := compositeMask(h, w, feather, [4]bool{y != 0, y+h < to.Y, x != 0, x+w < to.X})
	out := request.NewLatent(to.B, to.C, to.Y, to.X)
	copy(out.Data, to.Data)
	for p := range to.B * to.C {
		source := from.Data[p%(from.B*from.C)*from.Y*from.X:]
		for r := range h {
			line := out.Data[(p*to.Y+y+r)*to.X+x:][:w]
			for k := range line {
				m := mask[r*w+k]
				line[k] = float32(source[r*from.X+k]*m) + float32(line[k]*(1-m))
			}
		}
	}
	return []any{l.With(out)}, nil
}

// compositeMask is 1 inside and falls to 1/feather at inner edges (top, bottom, left, right). A feather wider than the
// picture scales some lines twice, because negative bounds of Python slices count from the end. ComfyUI does the same.
func compositeMask(h, w, feather int, inner [4]bool) []float32 {
	mask := filled(h*w, 1)
	rows := func(from, to int, rate float32) {
		from, to = sliced(h, from, to)
		for i := from * w; i < to*w; i++ {
			mask[i] *= rate
		}
	}
	columns := func(from, to int, rate float32) {
		from, to = sliced(w, from, to)
		for r := range h {
			for k := from; k < to; k++ {
				mask[r*w+k] *= rate
			}
		}
	}
	for t := range feather {
		rate := float32(1 / float64(feather) * float64(t+1))
		if inner[0] {
			rows(t, t+1, rate)
		}
		if inner[1] {
			rows(h-1-t, h-t, rate)
		}
		if inner[2] {
			columns(t, t+1, rate)
		}
		if inner[3] {
			columns(w-1-t, w-t, rate)
		}
	}
	return mask
}

// latentUpscale takes sizes in pixels, at least 64 a side. A side of 0 is computed from the aspect ratio; if both are
// 0, the latent stays as it is.
func latentUpscale(c *graph.Call) ([]any, error) {
	l, w, h := c.Latent("samples"), c.Whole("width"), c.Whole("height")
	s := l.Samples
	switch {
	case w == 0 && h == 0:
		return []any{l}, nil
	case w == 0:
		h = max(64, h)
		w = max(64, rounded(float64(s.X*h)/float64(s.Y)))
	case h == 0:
		w = max(64, w)
		h = max(64, rounded(float64(s.Y*w)/float64(s.X)))
	default:
		w, h = max(64, w), max(64, h)
	}
	return resizedOutput(l, w/8, h/8, c.Str("upscale_method"), c.Str("crop"), "width")
}

func latentUpscaleBy(c *graph.Call) ([]any, error) {
	l, by := c.Latent("samples"), c.Decimal("scale_by")
	return resizedOutput(l, rounded(float64(l.Samples.X)*by), rounded(float64(l.Samples.Y)*by), c.Str("upscale_method"),
		resample.CropDisabled, "scale_by")
}

// resizedOutput returns the outputs of a node that resizes to x by y latent pixels; field is the input to blame for a
// bad size.
func resizedOutput(l *value.Latent, x, y int, method, crop, field string) ([]any, error) {
	s, err := resizedLatent(l.Samples, x, y, method, crop, field)
	return []any{l.With(s)}, err
}

// fittedLatent center-crops samples2 to the aspect ratio of samples1 and scales it to its size.
func fittedLatent(s, to request.Latent, method, field string) (request.Latent, error) {
	if s.Y == to.Y && s.X == to.X {
		return s, nil
	}
	return resizedLatent(s, to.X, to.Y, method, resample.CropCenter, field)
}

func resizedLatent(s request.Latent, x, y int, method, crop, field string) (request.Latent, error) {
	if err := checkSize(field, s.B, s.C, y, x); err != nil {
		return s, err
	}
	m, err := resample.Upscale(resample.Image{Data: s.Data, B: s.B, C: s.C, Y: s.Y, X: s.X}, x, y, method,
		crop)
	if err != nil {
		return s, fault.Bad(field, "%v", err)
	}
	return request.Latent{B: m.B, C: m.C, Y: m.Y, X: m.X, Data: m.Data}, nil
}
