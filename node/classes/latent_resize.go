package classes

import (
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel"
)

// resizeLatentClasses are the rows that enlarge or shrink latents.
func resizeLatentClasses() []graph.Class {
	method := graph.BareCombo("upscale_method", "nearest-exact", "bilinear", "area", "bicubic", "bislerp")
	side := func(name string) graph.Input {
		return graph.Int(name, "in pixels; 0 keeps the aspect", 512, 0, 16384, 8)
	}
	return []graph.Class{
		{
			Name: "LatentUpscale", Display: "Upscale Latent", Module: "nodes", Category: "model/latent",
			Aliases: "enlarge latent, resize latent",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), method, side("width"), side("height"),
				graph.BareCombo("crop", "disabled", "center"),
			},
			Outputs: graph.Slots("LATENT"), Run: latentUpscale,
		},
		{
			Name: "LatentUpscaleBy", Display: "Upscale Latent By", Module: "nodes", Category: "model/latent",
			Aliases: "enlarge latent, resize latent, scale latent",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), method,
				graph.Float("scale_by", "", 1.5, 0.01, 8, 0.01),
			},
			Outputs: graph.Slots("LATENT"), Run: latentUpscaleBy,
		},
	}
}

// latentUpscale takes pixels, at least 64 a side; a side of 0 follows from the aspect, both 0 leave the latent as it
// is.
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
		string(resample.CropDisabled), "scale_by")
}

// resizedOutput gives the outputs of a node that resizes to x by y latent pixels; field is the input to blame for the
// size.
func resizedOutput(l *value.Latent, x, y int, method, crop, field string) ([]any, error) {
	s, err := resizedLatent(l.Samples, x, y, method, crop, field)
	return []any{l.With(s)}, err
}

// fittedLatent is samples2, cropped in the middle and scaled to the size of samples1.
func fittedLatent(s, to parallel.Latent, method resample.Method) (parallel.Latent, error) {
	if s.Y == to.Y && s.X == to.X {
		return s, nil
	}
	return resizedLatent(s, to.X, to.Y, string(method), string(resample.CropCenter), "samples2")
}

func resizedLatent(s parallel.Latent, x, y int, method, crop, field string) (parallel.Latent, error) {
	if err := checkSize(field, s.B, s.C, y, x); err != nil {
		return s, err
	}
	m, err := resample.Upscale(resample.Image{Data: s.Data, B: s.B, C: s.C, Y: s.Y, X: s.X}, x, y, resample.Method(method),
		resample.Crop(crop))
	if err != nil {
		return s, fault.Bad(field, "%v", err)
	}
	return parallel.Latent{B: m.B, C: m.C, Y: m.Y, X: m.X, Data: m.Data}, nil
}
