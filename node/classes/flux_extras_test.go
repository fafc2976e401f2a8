package classes

import (
	"bytes"
	"path/filepath"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/lora"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// fluxRun is a run of tests/golden/modern33/flux.json.
type fluxRun struct {
	Loras              [][2]any
	Redux              [][2]any
	Seed               uint64
	Steps              int
	CFG                float64
	Sampler, Scheduler string
	Shape, Image       []int
}

// fluxRecord is tests/golden/modern33/flux.json.
type fluxRecord struct {
	Loras map[string][][4]any // name, shape, scale, offset
	Runs  map[string]*fluxRun
}

func readFluxRecord(t *testing.T) (r fluxRecord) {
	t.Helper()
	check(t, golden.JSON("modern33/flux.json", &r))
	return r
}

// write writes the model of the runs and the LoRA files into a models folder and returns it.
func (r *fluxRecord) write(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	writeGoldenModel(t, "kontext-a", "", filepath.Join(root, "diffusion_models", "flux.safetensors"))
	for name, tensors := range r.Loras {
		var entries []safetensors.Tensor
		for _, row := range tensors {
			n, shape := 1, []int{}
			for _, d := range row[1].([]any) {
				shape, n = append(shape, int(d.(float64))), n*int(d.(float64))
			}
			data := make([]byte, 4*n)
			engine.Narrow(data, golden.Fill(name+"/"+row[0].(string), n, row[2].(float64), row[3].(float64)), engine.F32)
			entries = append(entries, safetensors.Tensor{
				Name: row[0].(string), DType: engine.F32, Shape: shape,
				Data: datafile.Of(data),
			})
		}
		var b bytes.Buffer
		check(t, safetensors.Write(&b, nil, entries))
		scratch.Write(t, filepath.Join(root, "loras", name+".safetensors"), b.Bytes())
	}
	return root
}

// text returns a conditioning of a run.
func (r *fluxRun) text(tag string) value.Conditioning {
	e := e2eEntry{Tag: tag, Context: []int{1, 13, 40}, Pooled: []int{1, 32}}
	if r.Image != nil {
		e.ConcatImage = &e2eTensor{Input: "flux/image", Shape: r.Image}
	}
	return (&e2eCase{Model: "kontext-a"}).raw(e)
}

// sample adds a KSampler with these links and keeps its latent.
func (r *fluxRun) sample(g *graphMaker, model, positive any) {
	g.add("Keep", "latent", g.add("KSampler", "model", model, "positive", positive, "negative", g.add("TheNegative"),
		"latent_image", g.add("TheLatent"), "steps", int64(r.Steps), "cfg", r.CFG, "sampler_name", r.Sampler, "scheduler",
		r.Scheduler, "seed", r.Seed, "denoise", 1.0), "as", "output")
}

// values returns the values of the test classes in the graph of a run.
func (r *fluxRun) values() map[string]given {
	return map[string]given{
		"ThePositive": {"CONDITIONING", r.text("pos")}, "TheNegative": {"CONDITIONING", r.text("neg")},
		"TheLatent": {"LATENT", &value.Latent{Samples: request.NewLatent(r.Shape[0], r.Shape[1], r.Shape[2], r.Shape[3])}},
	}
}

// exactPlans returns plans that cover every parallel axis and give the results of one rank.
func exactPlans() []string {
	return []string{
		"", "ulysses=3", "ring=2", "ring=2,ulysses=2", "pipe=2,warmup=99", "pipe=2,ulysses=2,patches=3,warmup=99",
		"tensor=2", "tensor=3,form=scatter", "shard=on,ulysses=2",
	}
}

// TestControlLorasMatchComfyUI compares LoRA files like those of FLUX.1 Canny and Depth with ComfyUI: alone, after
// another LoRA and after each other, with and without an image, on one rank and on every exact plan.
func TestControlLorasMatchComfyUI(t *testing.T) {
	record := readFluxRecord(t)
	roots := files.Roots{Models: []string{record.write(t)}}
	eng, ran := engineOf(t, fastOps), 0
	for name, r := range record.Runs {
		if r.Loras == nil {
			continue
		}
		ran++
		values, got, g := r.values(), map[string]*value.Latent{}, newGraph()
		model := g.add("UNETLoader", "unet_name", "flux.safetensors", "weight_dtype", "default")
		for _, use := range r.Loras {
			if use[1].(float64) == 0 { // LoraLoaderModelOnly passes the model on, LoraLoader with a text encoder does not
				values["Still"] = given{"MODEL", withoutStrength(t, roots, use[0].(string))}
				model = g.add("Still")
				continue
			}
			model = g.add("LoraLoaderModelOnly", "model", model, "lora_name", use[0].(string)+".safetensors",
				"strength_model", use[1])
		}
		r.sample(g, model, g.add("ThePositive"))
		runner, err := graph.NewRunner(graph.Config{Engine: eng, Roots: roots, Catalogue: All(giving(values, got)...)})
		check(t, err)
		plans := exactPlans()
		if testing.Short() || r.Shape[0] > 1 {
			plans = append([]string{"data=2"}, plans[:2]...)[1-min(r.Shape[0]-1, 1):]
		}
		for _, plan := range plans {
			_, err := runner.Run(t.Context(), graph.Job{ID: name, Workflow: g.workflow(t), Plan: plan}, nil)
			if err != nil {
				t.Fatalf("%s %q: %v", name, plan, err)
			}
			rel := relative(got["output"].Samples.Data, tensorOf(t, "modern33/flux.safetensors", name))
			if t.Logf("%s %q: relative error %.2g, bound 1e-4", name, plan, rel); !(rel <= 1e-4) {
				t.Errorf("%s %q: relative error %.3g, bound 1e-4", name, plan, rel)
			}
		}
		runner.Close()
	}
	if ran != 4 {
		t.Errorf("ran %d cases, want 4", ran)
	}
}

// withoutStrength returns the model with a LoRA file applied at strength 0.
func withoutStrength(t *testing.T, roots files.Roots, name string) *value.Model {
	t.Helper()
	m, err := value.OpenFile(roots, value.ModelFile{Name: "flux.safetensors"})
	check(t, err)
	keys, err := value.LoraKeys(m, nil)
	check(t, err)
	check(t, files.ReadHeader(files.KindLora, filepath.Join(roots.Models[0], "loras", name+".safetensors"),
		false,
		func(h files.Header) error {
			found, err := lora.Match(h.Weights.Set(), keys)
			if err == nil {
				m, err = m.WithLora(h, 0, found)
			}
			return err
		}))
	return m
}
