package classes

import (
	"patchbay/node/graph"
	"patchbay/node/value"
)

// cutLatentClasses are the rows that take layers, rows or columns out of latents.
func cutLatentClasses() []graph.Class {
	row := func(name, aliases string, run func(*graph.Call) ([]any, error), inputs ...graph.Input) graph.Class {
		return graph.Class{
			Name: name, Module: "comfy_extras.nodes_latent", Category: "model/latent/advanced", Aliases: aliases,
			NewStyle: true, Inputs: append([]graph.Input{graph.Link("samples", "LATENT", "")}, inputs...),
			Outputs: graph.Slots("LATENT"), Run: run,
		}
	}
	const hint = "layers, columns or rows"
	return []graph.Class{
		row("LatentCut", "crop latent, slice latent, extract region", latentCut,
			graph.Combo("dim", hint, "x", "y", "t"),
			graph.Int("index", "a negative one counts from the end", 0, -16384, 16384, 1),
			graph.Int("amount", "", 1, 1, 16384, 1)),
		row("LatentCutToBatch", "slice to batch, split latent, tile latent", latentCutToBatch,
			graph.Combo("dim", hint, "t", "x", "y"), graph.Int("slice_size", "", 1, 1, 16384, 1)),
	}
}

func latentCut(c *graph.Call) ([]any, error) {
	l := c.Layers("samples")
	return []any{l.With(value.Cut(l.Samples, c.Str("dim"), c.Whole("index"), c.Whole("amount")))}, nil
}

func latentCutToBatch(c *graph.Call) ([]any, error) {
	l := c.Layers("samples")
	return []any{l.With(value.Apart(l.Samples, c.Str("dim"), c.Whole("slice_size")))}, nil
}
