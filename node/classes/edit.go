package classes

import (
	"slices"
	"strings"

	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// editClasses are the rows of models that change pictures: what they refer to, and the guidance their workflows use.
func editClasses() []graph.Class {
	return []graph.Class{
		{
			Name: "ReferenceLatent", Display: "Set Reference Latent", Module: "comfy_extras.nodes_edit_model",
			Category: "model/conditioning", NewStyle: true,
			Description: "Gives the network a latent that the picture refers to, one more each time.",
			Inputs: []graph.Input{
				graph.Link("conditioning", "CONDITIONING", ""), graph.Link("latent", "LATENT", "").AsOptional(),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: referenceLatent,
		},
		{
			Name: "FluxKontextMultiReferenceLatentMethod", Display: "Edit Model Reference Method",
			Module: "comfy_extras.nodes_flux", Category: "model/conditioning/flux", NewStyle: true, Experimental: true,
			Description: "Sets where latents that the picture refers to sit beside it.",
			Inputs: []graph.Input{
				graph.Link("conditioning", "CONDITIONING", ""),
				graph.Combo("reference_latents_method", "", "offset", "index", "uxo/uno", "index_timestep_zero").AsAdvanced(),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: func(c *graph.Call) ([]any, error) {
				method, _, _ := strings.Cut(c.Str("reference_latents_method"), "/")
				return []any{graph.Arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) { e.Method = method })}, nil
			},
		},
		{
			Name: "CFGNorm", Module: "comfy_extras.nodes_cfg", Category: "advanced/guidance", NewStyle: true,
			Experimental: true,
			Description:  "Scales what guidance makes of a pixel of the latent down to the length of the positive prediction.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Float("strength", "", 1, 0, 100, 0.01),
				graph.Bool("pre_cfg", "", false).AsOptional(),
			},
			Outputs: []graph.Slot{{Name: "patched_model", Type: "MODEL"}}, Run: cfgNorm,
		},
	}
}

func referenceLatent(c *graph.Call) ([]any, error) {
	list := graph.Arg[value.Conditioning](c, "conditioning")
	if !c.Given("latent") {
		return []any{list}, nil
	}
	l := graph.Arg[*value.Latent](c, "latent").Samples
	return []any{list.Each(func(e *value.Cond) {
		e.Latents = append(slices.Clip(e.Latents), l)
	})}, nil
}

func cfgNorm(c *graph.Call) ([]any, error) {
	if before, _ := c.Raw("pre_cfg").(bool); before {
		return nil, fault.Bad("pre_cfg", "true is not supported, only false")
	}
	m, strength := *graph.Arg[*value.Model](c, "model"), float32(c.Decimal("strength"))
	m.Norm = &strength
	return []any{&m}, nil
}
