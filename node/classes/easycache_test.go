package classes

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// cacheRecord is tests/golden/easycache.json.
type cacheRecord struct {
	Cases map[string]struct {
		Node, Model, Sampler, Scheduler, Latent string
		Steps                                   int64
		CFG, Denoise                            float64
		Seed                                    uint64
		Threshold                               float64 `json:"reuse_threshold"`
		Start                                   float64 `json:"start_percent"`
		End                                     float64 `json:"end_percent"`
		Shape                                   []int   `json:"latent_shape"`
		Positive, Negative                      []struct {
			Tag      string
			Tokens   int
			Guidance *float32
		}
		Evaluations [][]any
	}
}

func openCacheRecord(t *testing.T) cacheRecord {
	t.Helper()
	var r cacheRecord
	check(t, golden.JSON("easycache.json", &r))
	return r
}

// TestCacheNodesMatchComfyUI checks that recorded workflows with EasyCache and LazyCache give the same latents with the
// same number of evaluations.
func TestCacheNodesMatchComfyUI(t *testing.T) {
	if testing.Short() {
		t.Skip("long: recorded workflows; TestCacheTakesInLateEntries has the rule")
	}
	record, eng := openCacheRecord(t), engineOf(t, fastOps)
	names := []string{"flux-c/easy/cfg3-batched", "sd3-a/lazy/cfg4", "flux-a/easy/late", "sd3-a/easy/no-effect"}
	if testing.Short() { // under the race detector each takes half a minute
		names = names[:1]
	}
	for _, name := range names {
		c, ok := record.Cases[name]
		if !ok {
			t.Fatalf("easycache.json has no %s", name)
		}
		m := (&e2eCase{Model: c.Model}).model(t)
		conditioning := func(i int) value.Conditioning {
			e := c.Positive[0]
			if i > 0 {
				e = c.Negative[0]
			}
			base := "easycache/" + c.Model + "/" + e.Tag + "/"
			cols := m.Spec.ContextDim
			return value.Conditioning{{Entry: dit.Entry{
				Context:  dit.Array{Rows: e.Tokens, Cols: cols, Data: golden.Input(base+"context", e.Tokens*cols)},
				Pooled:   golden.Input(base+"pooled", m.Spec.PooledDim),
				Guidance: e.Guidance,
			}, MaskStrength: 1}}
		}
		got := map[string]*value.Latent{}
		values := map[string]given{
			"TheModel": {"MODEL", m}, "Plus": {"CONDITIONING", conditioning(0)}, "Minus": {"CONDITIONING", conditioning(1)},
			"TheLatent": {"LATENT", &value.Latent{Samples: request.NewLatent(c.Shape[0], c.Shape[1], c.Shape[2], c.Shape[3])}},
		}
		g := newGraph()
		model := g.add(c.Node, "model", g.add("TheModel"), "reuse_threshold", c.Threshold, "start_percent", c.Start,
			"end_percent", c.End, "verbose", true)
		g.add("Keep", "latent", g.add("KSampler", "model", model, "positive", g.add("Plus"), "negative", g.add("Minus"),
			"latent_image", g.add("TheLatent"),
			"seed", c.Seed, "steps", c.Steps, "cfg", c.CFG, "sampler_name", c.Sampler, "scheduler", c.Scheduler, "denoise",
			c.Denoise), "as", "output")
		run, err := graph.NewRunner(graph.Config{Engine: eng, Catalogue: All(giving(values, got)...)})
		check(t, err)
		result, err := run.Run(context.Background(), graph.Job{ID: name, Workflow: g.workflow(t)}, nil)
		check(t, err)
		run.Close()
		if rel := relative(got["output"].Samples.Data, tensorOf(t, "easycache.safetensors", name)); rel > 1e-5 {
			t.Errorf("%s: relative error %.3g, bound 1e-5", name, rel)
		}
		ran := 0
		for _, calls := range c.Evaluations {
			ran += min(len(calls), 1)
		}
		st := result.Stats[0]
		if st.Evaluations != ran || len(st.Reused) != len(c.Evaluations)-ran {
			t.Errorf("%s: %d evaluations ran and %d were reused, in ComfyUI %d and %d", name, st.Evaluations, len(st.Reused),
				ran, len(c.Evaluations)-ran)
		}
		if ran < len(c.Evaluations) && len(st.Changes) == 0 {
			t.Errorf("%s: verbose, but nothing is told of changes", name)
		}
		warned := strings.Contains(fmt.Sprint(result.Warnings), "EasyCache has no effect on sd3")
		if warned != (name == "sd3-a/easy/no-effect") {
			t.Errorf("%s: warnings %v", name, result.Warnings)
		}
	}
}
