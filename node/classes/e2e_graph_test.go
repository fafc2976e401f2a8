package classes

import (
	"fmt"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// graphMaker builds a workflow node by node.
type graphMaker struct{ nodes *pyjson.Object }

func newGraph() *graphMaker { return &graphMaker{pyjson.NewObject()} }

// add appends a node, with alternating input names and values, and returns the link to its first output.
func (g *graphMaker) add(class string, inputs ...any) []any {
	id := fmt.Sprint(len(g.nodes.Keys()) + 1)
	g.nodes.Set(id, pyjson.NewObject("class_type", class, "inputs", pyjson.NewObject(inputs...)))
	return []any{id, int64(0)}
}

// second returns the link to the second output of a node.
func second(link []any) []any { return []any{link[0], int64(1)} }

// workflow parses the graph from JSON, like every workflow.
func (g *graphMaker) workflow(t *testing.T) *graph.Workflow {
	t.Helper()
	w, failure := graph.ParseWorkflowJSON(pyjson.Dump(g.nodes))
	if failure != nil {
		t.Fatal(failure)
	}
	return w
}

// raw returns what a text encoder would return for an entry.
func (c *e2eCase) raw(e e2eEntry) value.Conditioning {
	base := "e2e/" + c.Model + "/" + e.Tag + "/"
	array := func(name string, shape []int) dit.Array {
		return dit.Array{Rows: shape[1], Cols: shape[2], Data: golden.Input(base+name, shape[1]*shape[2])}
	}
	cond := value.Cond{MaskStrength: 1}
	cond.Context, cond.ContextLen = array("context", e.Context), e.MaskLength
	if e.Input != "" {
		cond.Context.Data = golden.Input(e.Input, len(cond.Context.Data))
	}
	if e.Pooled != nil {
		cond.Pooled = golden.Input(base+"pooled", e.Pooled[1])
	}
	if e.T5 != nil {
		cond.Context2, cond.Context2Len = array("t5", e.T5), e.MaskLengthT5
	}
	if r := e.ConcatImage; r != nil {
		cond.ConcatImage = request.NewLatent(r.Shape[0], r.Shape[1], r.Shape[2], r.Shape[3])
		cond.ConcatImage.Data = golden.Input(r.Input, cond.ConcatImage.Len())
	}
	if r := e.ConcatMask; r != nil { // values 0..1
		cond.ConcatMask = &picture.Mask{
			B: 1, Y: r.Shape[2], X: r.Shape[3],
			Data: golden.Fill("input:"+r.Input, r.Shape[2]*r.Shape[3], 1, 0.5),
		}
	}
	if e.Width > 0 { // CLIPTextEncodePixArtAlpha
		sizes := family.Uncropped(int(e.Height), int(e.Width))
		cond.Sizes = &sizes
	}
	return value.Conditioning{cond}
}

// rectangle returns the mask of the golden cases: rows y/4 .. 3y/4-1 and columns from x/3 are 1, (0,0) is 0.5.
func rectangle(y, x int) *picture.Mask {
	m := &picture.Mask{B: 1, Y: y, X: x, Data: make([]float32, y*x)}
	for r := y / 4; r < 3*y/4; r++ {
		for c := x / 3; c < x; c++ {
			m.Data[r*x+c] = 1
		}
	}
	m.Data[0] = 0.5
	return m
}

// given is a value that a class of the test outputs to the graph.
type given struct {
	kind  string
	value any
}

// side adds the nodes of one conditioning list. Raw entries come from classes of the test, everything else from stock
// nodes.
func (c *e2eCase) side(g *graphMaker, values map[string]given, name string, list []e2eEntry) []any {
	give := func(class, kind string, v any) []any {
		values[class] = given{kind, v}
		return g.add(class)
	}
	var all []any
	for i, e := range list {
		link := give(fmt.Sprintf("%s%d", name, i), "CONDITIONING", c.raw(e))
		switch v := e.Guidance.(type) {
		case float64:
			link = g.add("FluxGuidance", "conditioning", link, "guidance", v)
		case nil:
			if strings.HasPrefix(c.Model, "flux") { // recorded as null
				link = g.add("FluxDisableGuidance", "conditioning", link)
			}
		}
		if mixed := strings.HasPrefix(c.What, "ConditioningAverage"); (mixed || e.Final != nil) && name == "positive" {
			other := e
			other.Tag, other.Context = "pos3", []int{1, 7, e.Context[2]}
			from := give("Other", "CONDITIONING", c.raw(other))
			if mixed {
				link = g.add("ConditioningAverage", "conditioning_to", link, "conditioning_from", from,
					"conditioning_to_strength", 0.3)
			} else {
				link = g.add("ConditioningConcat", "conditioning_to", link, "conditioning_from", from)
			}
		}
		if e.Zeroed {
			link = g.add("ConditioningZeroOut", "conditioning", link)
		}
		for k, r := range e.References {
			l := request.NewLatent(1, r.Shape[1], r.Shape[len(r.Shape)-2], r.Shape[len(r.Shape)-1])
			l.Data = golden.Input(r.Input, l.Len())
			link = g.add("ReferenceLatent", "conditioning", link, "latent",
				give(fmt.Sprintf("%sReference%d", name, k), "LATENT", &value.Latent{Samples: l}))
		}
		if e.Method != "" {
			link = g.add("FluxKontextMultiReferenceLatentMethod", "conditioning", link, "reference_latents_method", e.Method)
		}
		if e.Area != nil {
			part := func(k, n int) float64 { return e.Area[k].(float64) / float64(n) }
			y, x := c.Shape[2], c.Shape[3]
			link = g.add("ConditioningSetAreaPercentage", "conditioning", link, "height", part(0, y), "width", part(1, x), "y",
				part(2, y), "x", part(3, x), "strength", *e.Strength)
		}
		if e.Mask != nil {
			m := rectangle(e.Mask[1], e.Mask[2])
			mask := give(fmt.Sprintf("Mask%d", i), "MASK", m)
			if i == 1 && list[0].Mask != nil { // the second of two masks is the rest
				mask = g.add("InvertMask", "mask", mask)
			}
			link = g.add("ConditioningSetMask", "conditioning", link, "mask", mask, "strength", e.MaskStrength, "set_cond_area",
				map[bool]string{true: "mask bounds", false: "default"}[e.Bounds])
		}
		if e.Start != nil {
			link = g.add("ConditioningSetTimestepRange", "conditioning", link, "start", *e.Start, "end", *e.End)
		}
		if all == nil {
			all = link
		} else {
			all = g.add("ConditioningCombine", "conditioning_1", all, "conditioning_2", link)
		}
	}
	return all
}

// start adds the latent that the case starts from.
func (c *e2eCase) start(t *testing.T, g *graphMaker, values map[string]given) []any {
	if len(c.Shape) == 5 { // sides are rounded down to the node's step
		return g.add("EmptyQwenImageLayeredLatentImage", "batch_size", int64(c.Shape[0]), "layers",
			int64(c.Shape[2]-1), "height", int64(8*c.Shape[3]+5), "width", int64(8*c.Shape[4]+3))
	}
	l := &value.Latent{Samples: request.NewLatent(c.Shape[0], c.Shape[1], c.Shape[2], c.Shape[3])}
	switch {
	case strings.HasPrefix(c.Latent, "input:"):
		l.Samples.Data = golden.Input(strings.TrimPrefix(c.Latent, "input:"), l.Samples.Len())
	case c.Latent == "see what":
		l.Samples.Data = goldenTensor(t, c.Model+"/advanced/stage1")
	}
	if strings.Contains(c.What, "items 3 and 1") {
		l.BatchIndex = []int{3, 1}
	}
	values["TheLatent"] = given{"LATENT", l}
	link, y, x := g.add("TheLatent"), c.Shape[2], c.Shape[3]
	switch {
	case strings.HasPrefix(c.What, "noise_mask"):
		values["TheMask"] = given{"MASK", rectangle(8*y, 8*x)}
	case strings.HasPrefix(c.What, "DifferentialDiffusion"):
		values["TheMask"] = given{"MASK", &picture.Mask{
			B: 1, Y: y, X: x,
			Data: golden.Fill("input:e2e/diffmask", y*x, 1, 0.5),
		}}
	default:
		return link
	}
	return g.add("SetLatentNoiseMask", "samples", link, "mask", g.add("TheMask"))
}

// changed adds the nodes that patch the model, if the case has any.
func (c *e2eCase) changed(g *graphMaker, model []any) []any {
	if c.EasyCache != nil {
		model = g.add("EasyCache", "model", model, "reuse_threshold", c.EasyCache[0], "start_percent", c.EasyCache[1],
			"end_percent", c.EasyCache[2], "verbose", false)
	}
	if c.Norm != nil {
		model = g.add("CFGNorm", "model", model, "strength", *c.Norm)
	}
	switch {
	case len(c.Patch) == 2:
		return g.add(c.Patch[0].(string), "model", model, "shift", c.Patch[1])
	case len(c.Patch) == 5:
		return g.add(c.Patch[0].(string), "model", model, "max_shift", c.Patch[1], "base_shift", c.Patch[2], "width",
			int64(c.Patch[3].(float64)), "height", int64(c.Patch[4].(float64)))
	case strings.HasPrefix(c.What, "ModelSamplingFlux"):
		return g.add("ModelSamplingFlux", "model", model, "max_shift", 1.15, "base_shift", 0.5, "width", int64(96),
			"height", int64(64))
	case strings.HasPrefix(c.What, "ModelSamplingSD3"):
		return g.add("ModelSamplingSD3", "model", model, "shift", 6.0)
	case strings.HasPrefix(c.What, "DifferentialDiffusion"):
		return g.add("DifferentialDiffusion", "model", model)
	}
	return model
}

// build returns the case as a workflow, and the values of its test classes: model, raw conditionings, latent, masks.
func (c *e2eCase) build(t *testing.T, m *value.Model) (g *graphMaker, values map[string]given) {
	g, values = newGraph(), map[string]given{"TheModel": {"MODEL", m}}
	model := c.changed(g, g.add("TheModel"))
	latent := c.start(t, g, values)
	if c.Node == "SamplerCustomAdvanced" {
		c.custom(g, values, model, latent)
		return g, values
	}
	inputs := []any{
		"model", model, "positive", c.side(g, values, "positive", c.Positive), "negative",
		c.side(g, values, "negative", c.Negative), "latent_image", latent,
		"steps", int64(c.Steps), "cfg", c.CFG, "sampler_name", c.Sampler, "scheduler", c.Scheduler,
	}
	if c.Node == "KSampler" {
		inputs = append(inputs, "seed", c.Seed, "denoise", c.Denoise)
	} else {
		inputs = append(inputs, "noise_seed", c.Seed, "add_noise", c.AddNoise, "start_at_step", int64(c.Start), "end_at_step",
			int64(c.End), "return_with_leftover_noise", c.Leftover)
	}
	out := g.add(c.Node, inputs...)
	g.add("Keep", "latent", out, "as", "output")
	if len(c.Shape) == 5 {
		cut := g.add("LatentCut", "samples", out, "dim", "t", "index", int64(1), "amount", int64(16384))
		g.add("Keep", "latent", g.add("LatentCutToBatch", "samples", cut, "dim", "t", "slice_size", int64(1)), "as", "layers")
	}
	return g, values
}

// custom adds the custom-sampling chain of a case.
func (c *e2eCase) custom(g *graphMaker, values map[string]given, model, latent []any) {
	steps, schedule, sampler := int64(8), "normal", "euler"
	var guider []any
	switch {
	case c.Cond1 != nil:
		guider = g.add("DualCFGGuider", "model", model, "cond1", c.side(g, values, "cond1", c.Cond1), "cond2",
			c.side(g, values, "cond2", c.Cond2),
			"negative", c.side(g, values, "negative", c.Negative), "cfg_conds", 3.0, "cfg_cond2_negative", 2.0,
			"style", "regular")
	case c.SigmasFrom != "" && c.Negative == nil:
		guider = g.add("BasicGuider", "model", model, "conditioning", c.side(g, values, "positive", c.Positive))
	case c.SigmasFrom != "":
		guider = g.add("CFGGuider", "model", model, "positive", c.side(g, values, "positive", c.Positive), "negative",
			c.side(g, values, "negative", c.Negative), "cfg", c.CFG)
	case c.Negative == nil: // the graph of the public FLUX example
		model = g.add("ModelSamplingFlux", "model", model, "max_shift", 1.15, "base_shift", 0.5, "width", int64(1024),
			"height", int64(1024))
		steps, schedule = 6, "simple"
		guider = g.add("BasicGuider", "model", model, "conditioning", c.side(g, values, "positive", c.Positive))
	default:
		sampler = "dpmpp_2m"
		guider = g.add("CFGGuider", "model", model, "positive", c.side(g, values, "positive", c.Positive), "negative",
			c.side(g, values, "negative", c.Negative), "cfg", 3.5)
	}
	sigmas := g.add("BasicScheduler", "model", model, "scheduler", schedule, "steps", steps, "denoise", 1.0)
	if c.SigmasFrom != "" {
		var width, height int64
		if _, err := fmt.Sscanf(c.SigmasFrom, "Flux2Scheduler %d %d %d", &steps, &width, &height); err != nil {
			panic(err)
		}
		sigmas = g.add("Flux2Scheduler", "steps", steps, "width", width, "height", height)
	}
	if len(c.Sigmas) < int(steps) {
		sigmas = g.add("SplitSigmas", "sigmas", sigmas, "step", int64(len(c.Sigmas)-1))
	}
	s := g.add("SamplerCustomAdvanced", "noise", g.add("RandomNoise", "noise_seed", c.Seed), "guider", guider,
		"sampler", g.add("KSamplerSelect", "sampler_name", sampler), "sigmas", sigmas, "latent_image", latent)
	g.add("Keep", "latent", s, "as", "output")
	g.add("Keep", "latent", second(s), "as", "denoised")
}

// giving returns test classes that output values to a graph, and Keep, which stores latents in got.
func giving(values map[string]given, got map[string]*value.Latent) []graph.Class {
	out := []graph.Class{{
		Name: "Keep", Output: true,
		Inputs: []graph.Input{graph.Bare("latent", "LATENT"), graph.Number("as", "STRING", "")},
		Run: func(call *graph.Call) ([]any, error) {
			got[call.Str("as")] = graph.Arg[*value.Latent](call, "latent")
			return nil, nil
		},
	}}
	for name, v := range values {
		out = append(out, graph.Class{
			Name: name, Fresh: true, Outputs: graph.Slots(v.kind),
			Run: func(*graph.Call) ([]any, error) { return []any{v.value}, nil },
		})
	}
	return out
}

// TestSamplerCustomEqualsKSampler compares SamplerCustom with recorded KSampler cases of the same parts.
func TestSamplerCustomEqualsKSampler(t *testing.T) {
	var cases map[string]*e2eCase
	if err := golden.JSON("e2e.json", &cases); err != nil {
		t.Fatal(err)
	}
	names := []string{"sd3-a/noise_mask-ddim"}
	if !testing.Short() {
		names = append(names, "flux-b/schnell-euler-simple-4", "sd3-a/dpmpp_sde-karras-cfg3", "hydit-a/noise_mask-dpmpp_2m")
	}
	eng := refEngine(t)
	for _, name := range names {
		c := cases[name]
		m := c.model(t)
		g, values := newGraph(), map[string]given{"TheModel": {"MODEL", m}}
		model, latent := g.add("TheModel"), c.start(t, g, values)
		s := g.add("SamplerCustom", "model", model, "add_noise", true, "noise_seed", c.Seed, "cfg", c.CFG,
			"positive", c.side(g, values, "positive", c.Positive), "negative", c.side(g, values, "negative", c.Negative),
			"sampler", g.add("KSamplerSelect", "sampler_name", c.Sampler),
			"sigmas", g.add("BasicScheduler", "model", model, "scheduler", c.Scheduler, "steps", int64(c.Steps), "denoise",
				c.Denoise), "latent_image", latent)
		g.add("Keep", "latent", s, "as", "output")
		got := runGraph(t, eng, g, values)
		rel := relative(got["output"].Samples.Data, goldenTensor(t, name))
		t.Logf("%s: relative error %.2g, bound 1e-4", name, rel)
		if rel > 1e-4 {
			t.Errorf("%s: relative error %.3g, bound 1e-4", name, rel)
		}
	}
}

// runGraph runs a graph with the values of its test classes and returns the latents that Keep stored.
func runGraph(t *testing.T, eng *parallel.Pool, g *graphMaker, values map[string]given) map[string]*value.Latent {
	t.Helper()
	got := map[string]*value.Latent{}
	runner, err := graph.NewRunner(graph.Config{Engine: eng, Catalogue: All(giving(values, got)...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runner.Close)
	if _, err := runner.Run(t.Context(), graph.Job{ID: "graph", Workflow: g.workflow(t)}, nil); err != nil {
		t.Fatal(err)
	}
	return got
}
