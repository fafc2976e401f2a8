package node

import (
	"strings"

	"patchbay/models/sampling"
	"patchbay/node/value"
)

// schedulerClasses are the rows that make lists of sigmas.
func schedulerClasses() []Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "sampling/custom_sampling/schedulers"
	row := func(name string, run func(*Call) ([]float32, error), inputs ...Input) Class {
		return Class{
			Name: name, Module: module, Category: category, NewStyle: true, Inputs: inputs, Outputs: slots("SIGMAS"),
			Run: func(c *Call) ([]any, error) { return sigmasOf(run(c)) },
		}
	}
	model := linkIn("model", "MODEL", "")
	steps := number("steps", "INT", "", "default", int64(20), "min", int64(1), "max", int64(10000))
	float := func(name string, preset, lo, hi, step float64) Input {
		return number(name, "FLOAT", "", "default", preset, "min", lo, "max", hi, "step", step, "round", false)
	}
	side := func(name string) Input {
		return number(name, "INT", "in pixels", "default", int64(1024), "min", int64(16), "max", int64(16384), "step", int64(1))
	}
	highest, lowest := float("sigma_max", 14.614642, 0, 5000, 0.01), float("sigma_min", 0.0291675, 0, 5000, 0.01)
	return []Class{
		row("KarrasScheduler", func(c *Call) ([]float32, error) {
			return sampling.Karras(c.whole("steps"), c.decimal("sigma_min"), c.decimal("sigma_max"), c.decimal("rho"))
		}, steps, highest, lowest, float("rho", 7, 0, 100, 0.01)),
		row("ExponentialScheduler", func(c *Call) ([]float32, error) {
			return sampling.Exponential(c.whole("steps"), c.decimal("sigma_min"), c.decimal("sigma_max"))
		}, steps, highest, lowest),
		row("PolyexponentialScheduler", func(c *Call) ([]float32, error) {
			return sampling.Polyexponential(c.whole("steps"), c.decimal("sigma_min"), c.decimal("sigma_max"), c.decimal("rho"))
		}, steps, highest, lowest, float("rho", 1, 0, 100, 0.01)),
		row("LaplaceScheduler", func(c *Call) ([]float32, error) {
			return sampling.Laplace(c.whole("steps"), c.decimal("sigma_min"), c.decimal("sigma_max"), c.decimal("mu"), c.decimal("beta"))
		}, steps, highest, lowest, float("mu", 0, -10, 10, 0.1), float("beta", 0.5, 0, 10, 0.1)),
		row("VPScheduler", func(c *Call) ([]float32, error) {
			return sampling.VP(c.whole("steps"), c.decimal("beta_d"), c.decimal("beta_min"), c.decimal("eps_s"))
		}, steps, float("beta_d", 19.9, 0, 5000, 0.01), float("beta_min", 0.1, 0, 5000, 0.01), float("eps_s", 0.001, 0, 1, 0.0001)),
		row("BetaSamplingScheduler", func(c *Call) ([]float32, error) {
			return sampling.BetaSigmas(arg[*value.Model](c, "model").Sampling, c.whole("steps"), c.decimal("alpha"), c.decimal("beta"))
		}, model, steps, float("alpha", 0.6, 0, 50, 0.01), float("beta", 0.6, 0, 50, 0.01)),
		{
			Name: "Flux2Scheduler", Module: "comfy_extras.nodes_flux", Category: category, NewStyle: true,
			Inputs: []Input{number("steps", "INT", "", "default", int64(20), "min", int64(1), "max", int64(4096)), side("width"), side("height")}, Outputs: slots("SIGMAS"),
			Run: func(c *Call) ([]any, error) {
				return sigmasOf(sampling.Flux2(c.whole("steps"), c.whole("width"), c.whole("height")))
			},
		},
		row("SDTurboScheduler", func(c *Call) ([]float32, error) {
			return sampling.SDTurbo(arg[*value.Model](c, "model").Sampling, c.whole("steps"), c.decimal("denoise"))
		}, model, number("steps", "INT", "", "default", int64(1), "min", int64(1), "max", int64(10)),
			number("denoise", "FLOAT", "", "default", 1.0, "min", int64(0), "max", 1.0, "step", 0.01).asLater()),
	}
}

// firstWord is the argument that an error of package sampling begins with.
func firstWord(s string) string {
	if i := strings.IndexAny(s, " :,"); i > 0 {
		return s[:i]
	}
	return s
}
