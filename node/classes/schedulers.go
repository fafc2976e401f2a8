package classes

import (
	"strings"

	"patchbay/models/sampling"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// schedulerClasses are the rows that make lists of sigmas.
func schedulerClasses() []graph.Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "model/sampling/schedulers"
	row := func(name string, run func(*graph.Call) ([]float32, error), inputs ...graph.Input) graph.Class {
		return graph.Class{
			Name: name, Module: module, Category: category, NewStyle: true, Inputs: inputs, Outputs: graph.Slots("SIGMAS"),
			Run: func(c *graph.Call) ([]any, error) { return sigmasOf(run(c)) },
		}
	}
	model := graph.Link("model", "MODEL", "")
	steps := graph.Int("steps", "", 20, 1, 10000, 0)
	float := func(name string, preset, lo, hi, step float64) graph.Input {
		return graph.Float(name, "", preset, lo, hi, step).With("round", false).AsAdvanced()
	}
	highest, lowest := float("sigma_max", 14.614642, 0, 5000, 0.01), float("sigma_min", 0.0291675, 0, 5000, 0.01)
	return []graph.Class{
		row("KarrasScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.Karras(c.Whole("steps"), c.Decimal("sigma_min"), c.Decimal("sigma_max"), c.Decimal("rho"))
		}, steps, highest, lowest, float("rho", 7, 0, 100, 0.01)),
		row("ExponentialScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.Exponential(c.Whole("steps"), c.Decimal("sigma_min"), c.Decimal("sigma_max"))
		}, steps, highest, lowest),
		row("PolyexponentialScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.Polyexponential(c.Whole("steps"), c.Decimal("sigma_min"), c.Decimal("sigma_max"), c.Decimal("rho"))
		}, steps, highest, lowest, float("rho", 1, 0, 100, 0.01)),
		row("LaplaceScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.Laplace(c.Whole("steps"), c.Decimal("sigma_min"), c.Decimal("sigma_max"),
				c.Decimal("mu"), c.Decimal("beta"))
		}, steps, highest, lowest, float("mu", 0, -10, 10, 0.1), float("beta", 0.5, 0, 10, 0.1)),
		row("VPScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.VP(c.Whole("steps"), c.Decimal("beta_d"), c.Decimal("beta_min"), c.Decimal("eps_s"))
		}, steps, float("beta_d", 19.9, 0, 5000, 0.01), float("beta_min", 0.1, 0, 5000, 0.01),
			float("eps_s", 0.001, 0, 1, 0.0001)),
		row("BetaSamplingScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.BetaSigmas(graph.Arg[*value.Model](c, "model").Sampling, c.Whole("steps"),
				c.Decimal("alpha"), c.Decimal("beta"))
		}, model, steps, float("alpha", 0.6, 0, 50, 0.01), float("beta", 0.6, 0, 50, 0.01)),
		{
			Name: "Flux2Scheduler", Module: "comfy_extras.nodes_flux", Category: category, NewStyle: true,
			Inputs: []graph.Input{
				graph.Int("steps", "", 20, 1, 4096, 0),
				pixels("width", 1024, 16, 1), pixels("height", 1024, 16, 1),
			}, Outputs: graph.Slots("SIGMAS"),
			Run: func(c *graph.Call) ([]any, error) {
				return sigmasOf(sampling.Flux2(c.Whole("steps"), c.Whole("width"), c.Whole("height")))
			},
		},
		row("SDTurboScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.SDTurbo(graph.Arg[*value.Model](c, "model").Sampling, c.Whole("steps"), c.Decimal("denoise"))
		}, model, graph.Int("steps", "", 1, 1, 10, 0),
			graph.Number("denoise", "FLOAT", "", "default", 1.0, "min", int64(0), "max", 1.0, "step", 0.01).AsLater()),
	}
}

// firstWord is the argument that an error of package sampling begins with.
func firstWord(s string) string {
	if i := strings.IndexAny(s, " :,"); i > 0 {
		return s[:i]
	}
	return s
}
