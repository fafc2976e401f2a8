package node

import (
	"slices"

	"patchbay/node/value"
	"patchbay/parallel"
)

// easyCacheClasses are the rows that let a MODEL reuse predictions between steps.
func easyCacheClasses() []Class {
	row := func(name, description string, run func(*Call) ([]any, error)) Class {
		part := func(name string, preset float64, tip string) Input {
			return number(name, "FLOAT", tip, "default", preset, "min", 0.0, "max", 1.0, "step", 0.01)
		}
		return Class{
			Name: name, Display: name, Module: "comfy_extras.nodes_easycache", Category: "advanced/debug/model", NewStyle: true, Experimental: true, Description: description,
			Inputs: []Input{
				linkIn("model", "MODEL", "the model that may reuse"),
				number("reuse_threshold", "FLOAT", "more reuses more steps and changes the picture more", "default", 0.2, "min", 0.0, "max", 3.0, "step", 0.01),
				part("start_percent", 0.15, "part of the run before which every step runs"), part("end_percent", 0.95, "part of the run behind which every step runs"),
				number("verbose", "BOOLEAN", "tell for every step what was expected and measured", "default", false),
			},
			Outputs: slots("MODEL"), Run: run,
		}
	}
	return []Class{
		row("EasyCache", "Leaves out steps whose prediction is expected to change little, measured at the network.", easyCache),
		row("LazyCache", "Leaves out steps whose prediction is expected to change little, measured at the latent; for every model.", lazyCache),
	}
}

// withCache returns a copy of the handle with the cache of the inputs. One cache replaces another.
func withCache(c *Call, rule parallel.CacheRule) *value.Model {
	m := *arg[*value.Model](c, "model")
	verbose, _ := c.raw("verbose").(bool)
	m.Cache = &parallel.Cache{Rule: rule, Threshold: float32(c.decimal("reuse_threshold")), Start: c.decimal("start_percent"), End: c.decimal("end_percent"), Verbose: verbose}
	return &m
}

// easyCache sets the cache of networks that ComfyUI 0.8.0 calls through wrappers. Others go on without one, there and here.
func easyCache(c *Call) ([]any, error) {
	m := arg[*value.Model](c, "model")
	if slices.Contains([]string{"sd3", "pixart", "hunyuandit"}, m.Spec.Family) {
		c.warn("node %s: EasyCache has no effect on %s models, as in ComfyUI 0.8.0; LazyCache works on all", c.ID, m.Spec.Family)
		return []any{m}, nil
	}
	return []any{withCache(c, parallel.CacheEasy)}, nil
}

func lazyCache(c *Call) ([]any, error) { return []any{withCache(c, parallel.CacheLazy)}, nil }
