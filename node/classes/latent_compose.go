package classes

import (
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture/resample"
	"patchbay/parallel"
)

// composeLatentClasses are the rows that make one latent of two.
func composeLatentClasses() []graph.Class {
	return []graph.Class{
		{
			Name: "LatentBlend", Display: "Latent Blend", Module: "nodes", Category: "experimental",
			Aliases: "mix latents, interpolate latents",
			Inputs: []graph.Input{
				graph.Bare("samples1", "LATENT"), graph.Bare("samples2", "LATENT"),
				graph.Number("blend_factor", "FLOAT", "part of the first", "default", 0.5, "min", int64(0), "max",
					int64(1), "step", 0.01),
			},
			Outputs: graph.Slots("LATENT"), Run: latentBlend,
		},
		{
			Name: "LatentComposite", Display: "Latent Composite", Module: "nodes", Category: "model/latent",
			Aliases: "overlay latent, layer latent, paste latent",
			Inputs: []graph.Input{
				graph.Bare("samples_to", "LATENT"), graph.Bare("samples_from", "LATENT"), pixels("x", 0, 0, 8),
				pixels("y", 0, 0, 8), pixels("feather", 0, 0, 8),
			},
			Outputs: graph.Slots("LATENT"), Run: latentComposite,
		},
	}
}

// latentBlend scales the second latent to the size of the first (bicubic, center crop); a batch of one goes with every
// other.
func latentBlend(c *graph.Call) ([]any, error) {
	l, f := c.Latent("samples1"), c.Decimal("blend_factor")
	a, b := l.Samples, c.Latent("samples2").Samples
	if err := sameBatch("samples2", a.C, b.C, a.B, b.B); err != nil {
		return nil, err
	}
	b, err := fittedLatent(b, a, resample.Bicubic)
	if err != nil {
		return nil, err
	}
	out := parallel.NewLatent(max(a.B, b.B), a.C, a.Y, a.X)
	wa, wb := float32(f), float32(1-f)
	for i := range out.Data {
		out.Data[i] = float32(a.Data[i%len(a.Data)]*wa) + float32(b.Data[i%len(b.Data)]*wb)
	}
	return []any{l.With(out)}, nil
}

// sameBatch refuses pairs that torch's broadcasting refuses: batches must be equal or one.
func sameBatch(field string, wantC, gotC, wantB, gotB int) error {
	if wantC != gotC {
		return fault.Family(field, "has %d channels, the other input %d: they must be equal", gotC, wantC)
	}
	if wantB != gotB && wantB != 1 && gotB != 1 {
		return fault.Bad(field, "has a batch of %d, the other input one of %d: they must be equal or 1", gotB, wantB)
	}
	return nil
}

// latentComposite pastes samples_from at (x, y); what does not fit is cut off.
func latentComposite(c *graph.Call) ([]any, error) {
	l := c.Latent("samples_to")
	to, from := l.Samples, c.Latent("samples_from").Samples
	x, y, feather := c.Whole("x")/8, c.Whole("y")/8, c.Whole("feather")/8
	switch {
	case to.C != from.C:
		return nil, sameBatch("samples_from", to.C, from.C, 1, 1)
	case from.B != 1 && from.B != to.B:
		return nil, fault.Bad("samples_from", "has a batch of %d, samples_to one of %d: want 1 or %d", from.B, to.B, to.B)
	case x > to.X || y > to.Y:
		return nil, fault.At(fault.CodeBadInput, "x", "x, y: %d, %d lie outside a latent of %d x %d pixels", 8*x,
			8*y, 8*to.X, 8*to.Y)
	}
	h, w := min(from.Y, to.Y-y), min(from.X, to.X-x)
	mask := compositeMask(h, w, feather, [4]bool{y != 0, y+h < to.Y, x != 0, x+w < to.X})
	out := parallel.NewLatent(to.B, to.C, to.Y, to.X)
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

// compositeMask is 1, falling to 1/feather at the edges that lie inside (top, bottom, left, right). A feather wider
// than the picture scales some lines twice, because negative bounds of Python slices count from the end: the numbers
// follow ComfyUI there too.
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
