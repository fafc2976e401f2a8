package classes

import (
	"math"

	"patchbay/node/graph"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel"
)

// latentMathClasses are the rows that calculate with latents. The second one is scaled to the size of the first
// (bilinear, center crop).
func latentMathClasses() []graph.Class {
	two := []graph.Input{graph.Link("samples1", "LATENT", ""), graph.Link("samples2", "LATENT", "")}
	row := func(name, category, aliases string, run func(*graph.Call) ([]any, error), inputs ...graph.Input) graph.Class {
		return graph.Class{
			Name: name, Module: "comfy_extras.nodes_latent", Category: category, Aliases: aliases, NewStyle: true,
			Inputs: inputs, Outputs: graph.Slots("LATENT"), Run: run,
		}
	}
	const category = "model/latent/advanced"
	batch := row("LatentBatch", "model/latent/batch", "combine latents, merge latents, join latents", latentBatch, two...)
	batch.Display, batch.Deprecated = "Batch Latents (DEPRECATED)", true
	return []graph.Class{
		row("LatentAdd", category, "combine latents, sum latents", func(c *graph.Call) ([]any, error) {
			return combineLatents(c, func(a, b float32) float32 { return a + b })
		}, two...),
		row("LatentSubtract", category, "difference latent, remove features", func(c *graph.Call) ([]any, error) {
			return combineLatents(c, func(a, b float32) float32 { return a - b })
		}, two...),
		row("LatentMultiply", category, "scale latent, amplify latent, latent gain", latentMultiply, graph.Link("samples",
			"LATENT", ""),
			graph.Float("multiplier", "", 1, -10, 10, 0.01)),
		row("LatentInterpolate", category, "blend latent, mix latent, lerp latent, transition", latentInterpolate, two[0],
			two[1],
			graph.Float("ratio", "part of the first", 1, 0, 1, 0.01)),
		batch,
	}
}

// secondLatent returns samples2 at the size of samples1; with fill it has as many items too: it is repeated, or cut.
func secondLatent(c *graph.Call, l *value.Latent, fill bool) (parallel.Latent, error) {
	a, b := l.Samples, c.Latent("samples2").Samples
	if err := sameBatch("samples2", a.C, b.C, 1, 1); err != nil {
		return b, err
	}
	b, err := fittedLatent(b, a, resample.Bilinear)
	if err != nil || !fill || a.B == b.B {
		return b, err
	}
	out := parallel.NewLatent(a.B, a.C, a.Y, a.X)
	for i := range out.Data {
		out.Data[i] = b.Data[i%len(b.Data)]
	}
	return out, nil
}

// combineLatents combines two latents value by value.
func combineLatents(c *graph.Call, f func(a, b float32) float32) ([]any, error) {
	l := c.Latent("samples1")
	b, err := secondLatent(c, l, true)
	if err != nil {
		return nil, err
	}
	out := parallel.NewLatent(b.B, b.C, b.Y, b.X)
	for i, v := range l.Samples.Data {
		out.Data[i] = f(v, b.Data[i])
	}
	return []any{l.With(out)}, nil
}

func latentMultiply(c *graph.Call) ([]any, error) {
	l, by := c.Layers("samples"), float32(c.Decimal("multiplier"))
	s := l.Samples
	s.Data = make([]float32, len(s.Data))
	for i, v := range l.Samples.Data {
		s.Data[i] = v * by
	}
	return []any{l.With(s)}, nil
}

// latentInterpolate mixes direction and length of the channels of every latent pixel by themselves: unit vectors u1, u2
// and lengths m1, m2 give unit(r*u1 + (1-r)*u2) * (r*m1 + (1-r)*m2), a vector of length 0 having no direction (ComfyUI
// nodes_latent). ComfyUI fails for batches; here every item is taken by itself.
func latentInterpolate(c *graph.Call) ([]any, error) {
	l, ratio := c.Latent("samples1"), c.Decimal("ratio")
	b, err := secondLatent(c, l, true)
	if err != nil {
		return nil, err
	}
	a, plane := l.Samples, b.Y*b.X
	out := parallel.NewLatent(a.B, a.C, a.Y, a.X)
	r, rest := float32(ratio), float32(1-ratio)
	mixed := make([]float32, a.C)
	for i := range a.B * plane {
		at := i/plane*a.C*plane + i%plane
		m1, m2 := channelNorm(a.Data[at:], plane, a.C), channelNorm(b.Data[at:], plane, a.C)
		for k := range mixed {
			u1, u2 := direction(a.Data[at+k*plane], m1), direction(b.Data[at+k*plane], m2)
			mixed[k] = float32(u1*r) + float32(u2*rest)
		}
		length, m := channelNorm(mixed, 1, a.C), float32(m1*r)+float32(m2*rest)
		for k, v := range mixed {
			out.Data[at+k*plane] = direction(v, length) * m
		}
	}
	return []any{l.With(out)}, nil
}

// channelNorm is the length of the vector v[0], v[stride] ... of n values.
func channelNorm(v []float32, stride, n int) float32 {
	sum := 0.0
	for i := range n {
		x := float64(v[i*stride])
		sum += x * x
	}
	return float32(math.Sqrt(sum))
}

func direction(v, length float32) float32 {
	if length == 0 {
		return 0
	}
	return v / length
}

// latentBatch puts the second batch behind the first. Every item keeps the noise that it would have had in its own
// batch.
func latentBatch(c *graph.Call) ([]any, error) {
	l := c.Latent("samples1")
	b, err := secondLatent(c, l, false)
	if err != nil {
		return nil, err
	}
	a := l.Samples
	if err := checkSize("samples2", a.B+b.B, a.C, a.Y, a.X); err != nil {
		return nil, err
	}
	out := l.With(parallel.Latent{
		B: a.B + b.B, C: a.C, Y: a.Y, X: a.X,
		Data: append(append(make([]float32, 0, len(a.Data)+len(b.Data)), a.Data...), b.Data...),
	})
	out.BatchIndex = append(l.Places(), c.Latent("samples2").Places()...)
	return []any{out}, nil
}
