package classes

import (
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

// easyCacheClasses are the rows that let a MODEL reuse predictions between steps.
func easyCacheClasses() []graph.Class {
	row := func(name, description string, run func(*graph.Call) ([]any, error)) graph.Class {
		part := func(name string, preset float64, tip string) graph.Input {
			return graph.Float(name, tip, preset, 0, 1, 0.01).AsAdvanced()
		}
		return graph.Class{
			Name: name, Display: name, Module: "comfy_extras.nodes_easycache", Category: "advanced/debug", NewStyle: true,
			Experimental: true, Description: description,
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", "the model that may reuse"),
				graph.Float("reuse_threshold", "more reuses more steps and changes the picture more", 0.2, 0, 3, 0.01).AsAdvanced(),
				part("start_percent", 0.15, "part of the run before which every step runs"),
				part("end_percent", 0.95, "part of the run behind which every step runs"),
				graph.Bool("verbose", "tell for every step what was expected and measured", false).AsAdvanced(),
			},
			Outputs: graph.Slots("MODEL"), Run: run,
		}
	}
	return []graph.Class{
		row("EasyCache", "Leaves out steps whose prediction is expected to change little, measured at the network.",
			easyCache),
		row("LazyCache", "Leaves out steps whose prediction is expected to change little, measured at the latent; for "+
			"every model.", lazyCache),
	}
}

// withCache returns a copy of the handle with the cache of the inputs. One cache replaces another.
func withCache(c *graph.Call, rule parallel.CacheRule) *value.Model {
	m := *graph.Arg[*value.Model](c, "model")
	verbose, _ := c.Raw("verbose").(bool)
	m.Cache = &parallel.Cache{
		Rule: rule, Threshold: float32(c.Decimal("reuse_threshold")),
		Start: c.Decimal("start_percent"), End: c.Decimal("end_percent"), Verbose: verbose,
	}
	return &m
}

// easyCache sets the cache of networks that ComfyUI calls through wrappers. Others go on without one, there and
// here.
func easyCache(c *graph.Call) ([]any, error) {
	m := graph.Arg[*value.Model](c, "model")
	if m.Traits.NoStepCache {
		c.Warn("node %s: EasyCache has no effect on %s models, as in ComfyUI; LazyCache works on all",
			c.ID, m.Spec.Family)
		return []any{m}, nil
	}
	return []any{withCache(c, parallel.CacheEasy)}, nil
}

func lazyCache(c *graph.Call) ([]any, error) { return []any{withCache(c, parallel.CacheLazy)}, nil }
