package classes

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// hintRun is a run of tests/golden/modern33/hints.json. Nets are file, type, strength, start, end, images and masks.
type hintRun struct {
	Model  string
	CFG    float64
	Latent []int
	Text   []int
	Pooled int
	Nets   [][7]any
	Redux  []any
	MT5    []int // shape of HunyuanDiT's second text; Valid: valid tokens of both texts
	Valid  []int
}

// writeNet writes a recorded control net with the config that names and shapes do not determine.
func writeNet(t *testing.T, root, name string, config map[string]any) {
	t.Helper()
	set, configText, err := goldenweights.Set(name)
	check(t, err)
	var c map[string]any
	check(t, json.Unmarshal(configText, &c))
	for k, v := range config {
		c[k] = v
	}
	text, err := json.Marshal(c)
	check(t, err)
	writeModel(t, filepath.Join(root, "controlnet", name+".safetensors"), set, string(text), strings.Clone)
}

// TestHintsOfSeveralPicturesMatchComfyUI compares with ComfyUI in all families with control nets, on one rank and on
// every parallel axis. The items of a batch use the hints in turn, each with its mask. If the autoencoder treats the
// hints as a video, all items get the first. Attention biases of the text do not apply to the net.
func TestHintsOfSeveralPicturesMatchComfyUI(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every family on every axis; TestExactPlansRunNetsAsOneRank has each axis")
	}
	var runs map[string]*hintRun
	check(t, golden.JSON("modern33/hints.json", &runs))
	root, eng := t.TempDir(), engineOf(t, fastOps)
	axes := map[string]any{"axes_dim": []int{8, 16, 16}, "axes_dims_rope": []int{8, 16, 16}}
	for _, name := range []string{
		"cn-union-a", "cn-xlabs-a", "cn-mistoline-a", "cn-sd3-a", "cn-qwen-a",
		"cn-qwen-inpaint-a", "cn-fun-a",
		"cn-sd35-canny-a", "cn-sd35-depth-a", "cn-hydit-a",
	} {
		writeNet(t, root, name, axes)
	}
	writeGolden(t, "redux-a", filepath.Join(root, "style_models", "redux.safetensors"))
	for _, name := range []string{"qwen-a", "sd3-b"} {
		writeGoldenModel(t, name, "", filepath.Join(root, "diffusion_models", name+".safetensors"))
	}
	writeGoldenModel(t, "wanvae-a", "", filepath.Join(root, "vae", "wan.safetensors"))
	_, config, err := goldenweights.Set("vae-kl")
	check(t, err)
	writeGoldenWith(t, "vae-kl", filepath.Join(root, "vae", "kl.safetensors"), map[string]string{"config": string(config)})
	_, config, err = goldenweights.Set("vae-flux")
	check(t, err)
	writeGoldenWith(t, "vae-flux", filepath.Join(root, "vae", "ae.safetensors"),
		map[string]string{"config": string(config)})
	for name, r := range runs {
		values, got, g := map[string]given{}, map[string]*value.Latent{}, newGraph()
		for class, side := range map[string]string{"ThePositive": "positive", "TheNegative": "negative"} {
			key := "hints/" + name + "/" + side
			text := value.Cond{MaskStrength: 1}
			text.Context = dit.Array{
				Rows: r.Text[0], Cols: r.Text[1], Data: golden.Input(key, r.Text[0]*r.Text[1]),
			}
			if r.Pooled > 0 {
				text.Pooled = golden.Input(key+"/pooled", r.Pooled)
			}
			if r.MT5 != nil {
				text.Context2 = dit.Array{
					Rows: r.MT5[0], Cols: r.MT5[1], Data: golden.Input(key+"/mt5", r.MT5[0]*r.MT5[1]),
				}
				text.ContextLen, text.Context2Len = r.Valid[0], r.Valid[1]
			}
			values[class] = given{"CONDITIONING", value.Conditioning{text}}
		}
		l := request.NewLatent(r.Latent[0], r.Latent[1], r.Latent[2], r.Latent[3])
		values["TheLatent"] = given{"LATENT", &value.Latent{Samples: l}}
		values["TheModel"] = given{"MODEL", (&e2eCase{Model: r.Model}).model(t)}
		values["TheSight"] = given{"CLIP_VISION_OUTPUT", value.VisionOutput{
			Rows: 9, Cols: 28, Data: golden.Input("hints/"+name+"/seen", 9*28),
		}}
		positive, negative, vae := g.add("ThePositive"), g.add("TheNegative"), "ae.safetensors"
		switch r.Model {
		case "qwen-a":
			vae = "wan.safetensors"
		case "hydit-a":
			vae = "kl.safetensors"
		}
		if r.Redux != nil {
			positive = g.add("StyleModelApply", "conditioning", positive, "style_model", g.add("StyleModelLoader",
				"style_model_name", "redux.safetensors"), "clip_vision_output", g.add("TheSight"), "strength", r.Redux[0],
				"strength_type", r.Redux[1])
		}
		for i, n := range r.Nets {
			pictures, masks, class := int(n[5].(float64)), int(n[6].(float64)), advanced
			at := string(rune('0' + i))
			values["TheHint"+at] = given{"IMAGE", &picture.Image{
				B: pictures, Y: 45, X: 33, C: 3, Data: golden.Fill("input:hints/"+name+"/image"+at, pictures*45*33*3, 1, 0.5),
			}}
			list := []any{
				"positive", positive, "negative", negative, "control_net", g.add("SetUnionControlNetType", "control_net",
					g.add("ControlNetLoader", "control_net_name", n[0].(string)+".safetensors"), "type", n[1]),
				"image", g.add("TheHint" + at), "vae", g.add("VAELoader", "vae_name", vae), "strength", n[2],
				"start_percent", n[3], "end_percent", n[4],
			}
			if masks > 0 {
				values["TheMask"+at] = given{"MASK", &picture.Mask{
					B: masks, Y: 9, X: 14, Data: golden.Fill("input:hints/"+name+"/mask"+at, masks*9*14, 1, 0.5),
				}}
				class, list = filling, append(list, "mask", g.add("TheMask"+at))
			}
			positive = g.add(class, list...)
			negative = second(positive)
		}
		model := g.add("TheModel")
		if name == "qwen-fun" || strings.HasPrefix(name, "sd35") { // the net needs the file of the model
			model = g.add("UNETLoader", "unet_name", r.Model+".safetensors", "weight_dtype", "default")
		}
		g.add("Keep", "latent", g.add("KSampler", "model", model, "positive", positive, "negative", negative,
			"latent_image", g.add("TheLatent"), "steps", int64(3), "cfg", r.CFG, "sampler_name", "euler", "scheduler",
			"simple", "seed", int64(7), "denoise", 1.0), "as", "output")
		run, err := graph.NewRunner(graph.Config{
			Engine: eng, Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(values, got)...),
		})
		check(t, err)
		plans := []string{
			"", "data=2", "ulysses=2,ring=2", "pipe=2,warmup=99", "tensor=2,form=scatter", "ulysses=2,deterministic=on",
		}
		if r.CFG > 1 {
			plans = append(plans, "cfg=2,data=2")
		}
		for _, plan := range plans {
			if strings.Contains(plan, "data=2") && l.B%2 > 0 {
				plan = strings.Replace(plan, "data=2", "data=3", 1)
			}
			_, err := run.Run(t.Context(), graph.Job{ID: "hints", Workflow: g.workflow(t), Plan: plan}, nil)
			if err != nil {
				t.Errorf("%s %q: %v", name, plan, err)
				continue
			}
			rel := relative(got["output"].Samples.Data, tensorOf(t, "modern33/hints.safetensors", name))
			if t.Logf("%s %q: relative error %.2g, bound 1e-5", name, plan, rel); !(rel <= 1e-5) {
				t.Errorf("%s %q: relative error %.3g, bound 1e-5", name, plan, rel)
			}
		}
		run.Close()
	}
	if len(runs) != 15 {
		t.Errorf("%d runs are recorded, want 15", len(runs))
	}
}
