package classes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// TestLoraOnBorrowedTensors checks control nets that borrow tensors of their model, which include the model's LoRAs in
// ComfyUI, but are those of the file here. A LoRA that changes a borrowed tensor is therefore refused by name, whatever
// its position among others. LoRAs on other tensors affect only the model.
func TestLoraOnBorrowedTensors(t *testing.T) {
	root, eng := t.TempDir(), engineOf(t, fastOps)
	writeNet(t, root, "cn-fun-a", map[string]any{"axes_dims_rope": []int{8, 16, 16}})
	writeGoldenModel(t, "qwen-a", "", filepath.Join(root, "diffusion_models", "qwen-a.safetensors"))
	writeGoldenModel(t, "wanvae-a", "", filepath.Join(root, "vae", "wan.safetensors"))
	at := func(name string) string { return filepath.Join(root, "loras", name+".safetensors") }
	loraFile(t, at("block"), "block", map[string][2]int{"transformer_blocks.1.attn.to_q": {120, 120}})
	loraFile(t, at("beginning"), "beginning", map[string][2]int{"img_in": {120, 64}})
	loraFile(t, at("time"), "time", map[string][2]int{"time_text_embed.timestep_embedder.linear_2": {120, 120}})
	set, _, err := goldenweights.Set("qwen-a")
	check(t, err)
	borrowed := int64(0)
	for _, name := range set.Names() {
		if s, _ := set.Get(name); !strings.HasPrefix(name, "transformer_blocks.") && !strings.HasPrefix(name, "norm_out.") &&
			!strings.HasPrefix(name, "proj_out.") {
			borrowed += s.Bytes()
		}
	}
	run := func(net bool, loras ...string) ([]float32, error) {
		m := (&e2eCase{Model: "qwen-a"}).model(t)
		text := value.Cond{MaskStrength: 1}
		text.Context.Rows, text.Context.Cols = 6, m.Spec.ContextDim
		text.Context.Data = golden.Input("borrowed/context", 6*m.Spec.ContextDim)
		got, g := map[string]*value.Latent{}, newGraph()
		values := map[string]given{
			"TheText": {"CONDITIONING", value.Conditioning{text}},
			"TheHint": {"IMAGE", &picture.Image{
				B: 1, Y: 45, X: 33, C: 3, Data: golden.Fill("borrowed/hint", 45*33*3, 1, 0.5),
			}},
			"TheLatent": {"LATENT", &value.Latent{Samples: request.NewLatent(1, 16, 6, 4)}},
		}
		positive, model := g.add("TheText"), g.add("UNETLoader", "unet_name", "qwen-a.safetensors", "weight_dtype", "default")
		negative := positive
		if net {
			positive = g.add(advanced, "positive", positive, "negative", negative, "control_net", g.add("ControlNetLoader",
				"control_net_name", "cn-fun-a.safetensors"), "image", g.add("TheHint"), "vae", g.add("VAELoader", "vae_name",
				"wan.safetensors"), "strength", 0.6, "start_percent", 0.0, "end_percent", 1.0)
			negative = second(positive)
		}
		for _, name := range loras {
			model = g.add("LoraLoaderModelOnly", "model", model, "lora_name", name+".safetensors", "strength_model", 0.8)
		}
		g.add("Keep", "latent", g.add("KSampler", "model", model, "positive", positive, "negative", negative, "latent_image",
			g.add("TheLatent"), "steps", int64(2), "cfg", 1.0, "sampler_name", "euler", "scheduler", "simple", "seed", int64(7),
			"denoise", 1.0), "as", "output")
		r, err := graph.NewRunner(graph.Config{
			Engine: eng, Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(values, got)...),
		})
		check(t, err)
		defer r.Close()
		if _, err := r.Run(t.Context(), graph.Job{ID: "borrowed", Workflow: g.workflow(t)}, nil); err != nil {
			return nil, err
		}
		return got["output"].Samples.Data, nil
	}
	for _, loras := range [][]string{{"beginning"}, {"block", "beginning"}, {"time", "block"}} {
		name := loras[0]
		if name == "block" {
			name = loras[1]
		}
		_, err := run(true, loras...)
		var f *fault.Error
		want := "of which the LoRA " + name + ".safetensors changes"
		if !errors.As(err, &f) || f.Code != fault.WrongFamily || f.Field != "positive" || f.Class != "KSampler" ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s of positive with %q", loras, err, fault.WrongFamily, want)
		}
		if _, err := run(false, loras...); err != nil {
			t.Errorf("%v without the net: %v", loras, err)
		}
	}
	plain, err := run(true)
	check(t, err)
	other, err := run(true, "block")
	check(t, err)
	if rel := relative(other, plain); !(rel >= 1e-3) {
		t.Errorf("a LoRA on a block moves the picture by %.3g", rel)
	}
	seen := false
	for _, m := range eng.Resident() {
		file, _, isNet := strings.Cut(m.Key, " beside ")
		path, _, _ := strings.Cut(file, "#")
		if !isNet {
			continue
		}
		info, err := os.Stat(path)
		check(t, err)
		if seen = true; m.Bytes != info.Size()+borrowed {
			t.Errorf("the net is reckoned with %d bytes, its file has %d, what it borrows %d", m.Bytes, info.Size(), borrowed)
		}
	}
	if !seen {
		t.Error("the net is not resident")
	}
}
