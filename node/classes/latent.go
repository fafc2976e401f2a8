package classes

import (
	"math"
	"slices"

	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// latentClasses returns the classes that make, save and load latents, split batches and latents, and compute with them.
func latentClasses() []graph.Class {
	size := func(width int64, step int64) []graph.Input {
		side := func(name string) graph.Input {
			return graph.Int(name, "in pixels", width, 16, 16384, step)
		}
		return []graph.Input{side("width"), side("height"), graph.Int("batch_size", "pictures made at once", 1, 1, 4096, 0)}
	}
	const hint = "layers, columns or rows"
	samples := graph.Link("samples", "LATENT", "")
	first, second := graph.Link("samples1", "LATENT", ""), graph.Link("samples2", "LATENT", "")
	batch := latentRow("LatentBatch", "batch", "combine latents, merge latents, join latents", latentBatch, first, second)
	batch.Display, batch.Deprecated = "Batch Latents (DEPRECATED)", true
	return graph.Rows(graph.Class{Category: "model/latent", Outputs: graph.Slots("LATENT")}, []graph.Class{
		{
			Name: "EmptyLatentImage", Display: "Empty Latent Image",
			Aliases:     "empty, empty latent, new latent, create latent, blank latent, blank",
			Description: "Zeros with 4 channels; models with more channels widen them.", Inputs: size(512, 8),
			Run: func(c *graph.Call) ([]any, error) { return emptyLatent(c, 4, 8, 0) },
		},
		{
			Name: "EmptySD3LatentImage", Module: "comfy_extras.nodes_sd3", Category: "model/latent/stable diffusion",
			Inputs: size(1024, 16), Run: func(c *graph.Call) ([]any, error) { return emptyLatent(c, 16, 8, 0) },
		},
		{
			Name: "EmptyFlux2LatentImage", Display: "Empty Flux 2 Latent", Module: "comfy_extras.nodes_flux",
			Category: "model/latent/flux", Inputs: size(1024, 16),
			Run: func(c *graph.Call) ([]any, error) { return emptyLatent(c, 128, 16, 0) },
		},
		{
			Name: "EmptyQwenImageLayeredLatentImage", Display: "Empty Qwen Image Layered Latent",
			Module: "comfy_extras.nodes_qwen", Category: "model/latent/qwen",
			Description: "Zeros for a picture and the layers that it is taken apart into.",
			Inputs: []graph.Input{
				graph.Int("width", "in pixels", 640, 16, 16384, 16), graph.Int("height", "in pixels", 640, 16, 16384, 16),
				graph.Int("layers", "beside the whole picture", 3, 0, 16384, 1),
				graph.Int("batch_size", "pictures made at once", 1, 1, 4096, 0),
			},
			Run: func(c *graph.Call) ([]any, error) { return emptyLatent(c, 16, 8, c.Whole("layers")+1) },
		},
		{
			Name: "EmptyHunyuanLatentVideo", Display: "Empty HunyuanVideo 1.0 Latent", Module: "comfy_extras.nodes_hunyuan",
			Category: "model/latent/hunyuan video", Description: "Zeros for a video; its length is cut to 4k+1 pictures.",
			Inputs: []graph.Input{
				graph.Int("width", "in pixels", 848, 16, 16384, 16), graph.Int("height", "in pixels", 480, 16, 16384, 16),
				graph.Int("length", "in pictures", 25, 1, 16384, 4),
				graph.Int("batch_size", "videos made at once", 1, 1, 4096, 0),
			},
			Run: func(c *graph.Call) ([]any, error) {
				out, err := emptyLatent(c, 16, 8, latentFrames(c.Whole("length")))
				if err == nil {
					out[0].(*value.Latent).Scale = 8
				}
				return out, err
			},
		},
		{
			Name: "SaveLatent", Display: "Save Latent", Aliases: "export latent", Output: true,
			Outputs: []graph.Slot{{Name: "samples", Type: "LATENT"}},
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), graph.Number("filename_prefix", "STRING", "", "default", "latents/ComfyUI"),
			},
			Hidden: workflowTexts(), Check: checkSavePrefix, Run: saveLatent,
		},
		{
			Name: "LoadLatent", Display: "Load Latent", Aliases: "import latent, open latent",
			Inputs: []graph.Input{graph.File("latent", files.KindInputLatent)}, Run: loadLatent, SelfChecked: []string{"latent"},
			Check: checkFile("latent", "Invalid latent file: "), Change: fileChange("latent"),
		},
		{
			Name: "BatchLatentsNode", Display: "Batch Latents", Module: "comfy_extras.nodes_post_processing",
			Category: "model/latent/batch", Aliases: "combine latents, stack latents, merge latents",
			Inputs: []graph.Input{graph.Grow("latents", "latent", 50, graph.Link("latent", "LATENT", ""))}, Run: batchLatents,
		},
		{
			Name: "RepeatLatentBatch", Display: "Repeat Latent Batch", Category: "model/latent/batch",
			Aliases: "duplicate latent, clone latent",
			Inputs:  []graph.Input{graph.Bare("samples", "LATENT"), graph.Int("amount", "", 1, 1, 64, 0)}, Run: repeatLatent,
		},
		{
			Name: "LatentFromBatch", Display: "Get Latent From Batch", Category: "model/latent/batch",
			Aliases:     "select from batch, pick latent, batch subset",
			Description: "Takes some latents of a batch; they keep the noise that they would have had in it.",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), graph.Int("batch_index", "", 0, -16384, 16384, 0),
				graph.Int("length", "", 1, 1, 64, 0),
			},
			Run: latentFromBatch,
		},
		latentRow("LatentCut", "advanced", "crop latent, slice latent, extract region", latentCut, samples,
			graph.Combo("dim", hint, "x", "y", "t"),
			graph.Int("index", "a negative one counts from the end", 0, -16384, 16384, 1),
			graph.Int("amount", "", 1, 1, 16384, 1)),
		latentRow("LatentCutToBatch", "advanced", "slice to batch, split latent, tile latent", latentCutToBatch, samples,
			graph.Combo("dim", hint, "t", "x", "y"), graph.Int("slice_size", "", 1, 1, 16384, 1)),
		latentRow("LatentAdd", "advanced", "combine latents, sum latents", func(c *graph.Call) ([]any, error) {
			return combineLatents(c, func(a, b float32) float32 { return a + b })
		}, first, second),
		latentRow("LatentSubtract", "advanced", "difference latent, remove features", func(c *graph.Call) ([]any, error) {
			return combineLatents(c, func(a, b float32) float32 { return a - b })
		}, first, second),
		latentRow("LatentMultiply", "advanced", "scale latent, amplify latent, latent gain", latentMultiply,
			graph.Link("samples", "LATENT", ""), graph.Float("multiplier", "", 1, -10, 10, 0.01)),
		latentRow("LatentInterpolate", "advanced", "blend latent, mix latent, lerp latent, transition", latentInterpolate,
			first, second, graph.Float("ratio", "part of the first", 1, 0, 1, 0.01)),
		batch,
	})
}

// emptyLatent returns zeros [B, C, height/pixels, width/pixels], or [B, C, t, ...] with t layers, in which case Scale
// stays unset. Sizes are rounded down to whole latent pixels, as in ComfyUI.
func emptyLatent(c *graph.Call, channels, pixels, t int) ([]any, error) {
	b, y, x := c.Whole("batch_size"), c.Whole("height")/pixels, c.Whole("width")/pixels
	if int64(b)*int64(channels)*int64(max(1, t))*int64(y)*int64(x) > value.MaxValues {
		return nil, fault.Bad("batch_size", "%d latents of %d x %d are more than this program holds (%d values)", b*max(1, t),
			x, y, value.MaxValues)
	}
	out := &value.Latent{Samples: request.NewLatent(b, channels, max(1, t)*y, x), Scale: pixels}
	if t > 0 {
		out.Samples.T, out.Scale = t, 0
	}
	return []any{out}, nil
}

// saveLatent writes the same file as ComfyUI's SaveLatent: latent_tensor, an empty latent_format_version_0, and the
// workflow in the metadata.
func saveLatent(c *graph.Call) ([]any, error) {
	l := c.Layers("samples")
	s := l.Samples
	prefix, err := files.CheckPrefix(c.Str("filename_prefix"), 0, 0)
	if err != nil {
		return nil, err
	}
	meta := map[string]string{}
	for _, kv := range metadataOf(c) {
		meta[kv[0]] = kv[1]
	}
	data, err := encodeLatent(s, meta)
	if err != nil {
		return nil, err
	}
	c.Save(files.Output{Kind: "latents", Prefix: prefix, Type: "output", Ext: ".latent", Data: data})
	return []any{l}, nil
}

// loadLatent reads a file of SaveLatent. Older files, without the version mark, hold values scaled by 0.18215.
func loadLatent(c *graph.Call) ([]any, error) {
	name := c.Str("latent")
	data, err := inputFile(c, "latent", name)
	if err != nil {
		return nil, err
	}
	f, err := safetensors.OpenBytes(data)
	if err != nil {
		return nil, fault.Bad("latent", "%s: %v", name, err)
	}
	e, ok := f.Entry("latent_tensor")
	if !ok || len(e.Shape) != 4 && len(e.Shape) != 5 {
		return nil, fault.Bad("latent", "%s holds no latent_tensor [B, C, Y, X] or [B, C, layers, Y, X]", name)
	}
	if e.Len() == 0 {
		return nil, fault.Bad("latent", "%s holds a latent_tensor of shape %v: want 1 or more of each side", name, e.Shape)
	}
	v, err := e.F32()
	if err != nil {
		return nil, fault.Bad("latent", "%s: %v", name, err)
	}
	if _, current := f.Entry("latent_format_version_0"); !current {
		for i := range v {
			v[i] *= 1 / float32(0.18215)
		}
	}
	if err := value.Finite(v); err != nil {
		return nil, fault.Bad("latent", "%s: %v", name, err)
	}
	samples, _ := request.LatentOf(e.Shape, v)
	return []any{&value.Latent{Samples: samples}}, nil
}

// repeatLatent repeats the whole batch. The copies get their own noise: their batch_index continues after the largest.
func repeatLatent(c *graph.Call) ([]any, error) {
	l, amount := c.Layers("samples"), c.Whole("amount")
	s := l.Samples
	if err := checkSize("amount", amount, s.B, s.C, s.Y, s.X); err != nil {
		return nil, err
	}
	s.B, s.Data = amount*s.B, slices.Repeat(s.Data, amount)
	out := l.With(s)
	if m := l.NoiseMask; m != nil && m.B > 1 {
		out.NoiseMask = &picture.Mask{B: amount * m.B, Y: m.Y, X: m.X, Data: slices.Repeat(m.Data, amount)}
	}
	if len(l.BatchIndex) == 0 {
		return []any{out}, nil
	}
	lo, hi := slices.Min(l.BatchIndex), slices.Max(l.BatchIndex)
	if last := hi + (amount-1)*(hi-lo+1); last > maxBatchIndex {
		return nil, fault.Bad("amount", "batch_index would reach %d, at most %d is allowed", last, maxBatchIndex)
	}
	out.BatchIndex = nil
	for i := range amount {
		for _, n := range l.BatchIndex {
			out.BatchIndex = append(out.BatchIndex, n+i*(hi-lo+1))
		}
	}
	return []any{out}, nil
}

// maxBatchIndex bounds the noise drawn just to reach an item's index (value's importLatent has the same limit).
const maxBatchIndex = 1 << 20

func latentFromBatch(c *graph.Call) ([]any, error) {
	l := c.Layers("samples")
	s := l.Samples
	from := fromIndex(c.Whole("batch_index"), s.B)
	length := min(s.B-from, c.Whole("length"))
	item := s.C * s.Y * s.X
	s.B, s.Data = length, s.Data[from*item:(from+length)*item]
	out := l.With(s)
	if m := l.NoiseMask; m != nil && m.B > 1 {
		out.NoiseMask = m.Items(from, length, l.Samples.B)
	}
	places := l.Places()
	lo, hi := sliced(len(places), from, from+length)
	out.BatchIndex = places[lo:hi]
	return []any{out}, nil
}

// latentRow returns a class of ComfyUI's nodes_latent, all of which output a latent.
func latentRow(name, category, aliases string, run func(*graph.Call) ([]any, error), inputs ...graph.Input,
) graph.Class {
	return graph.Class{
		Name: name, Module: "comfy_extras.nodes_latent", Category: "model/latent/" + category, Aliases: aliases,
		Inputs: inputs, Outputs: graph.Slots("LATENT"), Run: run,
	}
}

func latentCut(c *graph.Call) ([]any, error) {
	l := c.Layers("samples")
	return []any{l.With(value.Cut(l.Samples, c.Str("dim"), c.Whole("index"), c.Whole("amount")))}, nil
}

func latentCutToBatch(c *graph.Call) ([]any, error) {
	l := c.Layers("samples")
	return []any{l.With(value.SplitToBatch(l.Samples, c.Str("dim"), c.Whole("slice_size")))}, nil
}

// secondLatent returns samples2 resized to samples1. With fill its batch is also repeated or cut to the same length.
func secondLatent(c *graph.Call, l *value.Latent, fill bool) (request.Latent, error) {
	a, b := l.Samples, c.Latent("samples2").Samples
	if err := sameBatch("samples2", a.C, b.C, 1, 1); err != nil {
		return b, err
	}
	b, err := fittedLatent(b, a, resample.Bilinear, "samples2")
	if err != nil || !fill || a.B == b.B {
		return b, err
	}
	out := request.NewLatent(a.B, a.C, a.Y, a.X)
	for i := range out.Data {
		out.Data[i] = b.Data[i%len(b.Data)]
	}
	return out, nil
}

// combineLatents applies f to two latents element by element.
func combineLatents(c *graph.Call, f func(a, b float32) float32) ([]any, error) {
	l := c.Latent("samples1")
	b, err := secondLatent(c, l, true)
	if err != nil {
		return nil, err
	}
	out := request.NewLatent(b.B, b.C, b.Y, b.X)
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

// latentInterpolate interpolates direction and length of each latent pixel's channel vector separately: unit vectors
// u1, u2 and lengths m1, m2 give unit(r*u1 + (1-r)*u2) * (r*m1 + (1-r)*m2), where a vector of length 0 has direction 0
// (ComfyUI nodes_latent). ComfyUI fails for batches; here items are independent.
func latentInterpolate(c *graph.Call) ([]any, error) {
	l, ratio := c.Latent("samples1"), c.Decimal("ratio")
	b, err := secondLatent(c, l, true)
	if err != nil {
		return nil, err
	}
	a, plane := l.Samples, b.Y*b.X
	out := request.NewLatent(a.B, a.C, a.Y, a.X)
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

// channelNorm returns the length of the vector v[0], v[stride] ... of n values.
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

// latentBatch appends the second batch to the first. Every item keeps the noise that it would have had in its own
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
	out := l.With(request.Latent{
		B: a.B + b.B, C: a.C, Y: a.Y, X: a.X,
		Data: slices.Concat(a.Data, b.Data),
	})
	out.BatchIndex = append(l.Places(), c.Latent("samples2").Places()...)
	return []any{out}, nil
}

// batchLatents concatenates latents, all scaled to the size of the first; each keeps its places.
func batchLatents(c *graph.Call) ([]any, error) {
	names, values := c.Grown("latents")
	out := *values[0].(*value.Latent)
	first := out.Samples
	out.Samples.B, out.Samples.Data, out.BatchIndex = 0, nil, nil
	for i, v := range values {
		l, field := v.(*value.Latent), "latents."+names[i]
		if err := l.Single(field); err != nil {
			return nil, err
		}
		if err := sameBatch(field, first.C, l.Samples.C, 1, 1); err != nil {
			return nil, err
		}
		s, err := fittedLatent(l.Samples, first, resample.Bilinear, field)
		if err != nil {
			return nil, err
		}
		out.Samples.B += s.B
		if err := checkSize(field, out.Samples.B, s.C, s.Y, s.X); err != nil {
			return nil, err
		}
		out.Samples.Data = append(out.Samples.Data, s.Data...)
		out.BatchIndex = append(out.BatchIndex, l.Places()...)
	}
	return []any{&out}, nil
}
