package classes

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/tests/golden"
)

// visionRun is one case of tests/golden/wan/clip_vision.json: a picture that is seen, or a run.
type visionRun struct {
	Image   []int
	Crop    string
	Model   string
	Node    string
	Inputs  map[string][]int
	Seed    uint64
	Steps   int64
	CFG     float64
	Context []int
	batch   int64  // 0: 1
	eyes    string // empty: clipvision-h
	plan    string
}

const visionRecord = "wan/clip_vision.safetensors"

func visionRuns(t *testing.T) map[string]*visionRun {
	t.Helper()
	var all map[string]*visionRun
	check(t, golden.JSON("wan/clip_vision.json", &all))
	return all
}

// visionRoot returns a folder with the encoders, networks and the autoencoder of the recorded cases.
func visionRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for folder, names := range map[string][]string{
		"clip_vision":      {"clipvision-a", "clipvision-b", "clipvision-h", "siglip-a"},
		"diffusion_models": {"wan-i2v21-a", "wan-flf21-a"}, "vae": {"wan21vae-a"}, "text_encoders": {"clip-l-tiny"},
	} {
		for _, name := range names {
			_, config, err := goldenweights.Set(name)
			check(t, err)
			meta := map[string]string{}
			if folder == "clip_vision" && name != "clipvision-h" { // which is found out as the release
				meta["config"] = string(config)
			}
			writeGoldenWith(t, name, filepath.Join(root, folder, name+".safetensors"), meta)
		}
	}
	return root
}

func visionPicture(name string, shape []int) *picture.Image {
	n := shape[0] * shape[1] * shape[2] * shape[3]
	return &picture.Image{
		B: shape[0], Y: shape[1], X: shape[2], C: shape[3], Data: golden.Fill("input:clip_vision/"+name, n, 1, 0.5),
	}
}

// TestCLIPVisionThroughNodes compares what CLIPVisionLoader and CLIPVisionEncode give with ComfyUI 0.33.0: pictures of
// the encoder's size and of others, cropped and squeezed, two at once, with alpha.
func TestCLIPVisionThroughNodes(t *testing.T) {
	root, eng, n := visionRoot(t), engineOf(t, fastOps), 0
	for name, r := range visionRuns(t) {
		model, of, ok := strings.Cut(name, "/")
		if !ok || r.Image == nil || model == "clipvision-l" || model == "clipvision-g" { // models/text has those
			continue
		}
		n++
		var seen value.VisionOutput
		watch := graph.Class{
			Name: "Watch", Output: true, Inputs: []graph.Input{graph.Bare("seen", "CLIP_VISION_OUTPUT")},
			Run: func(c *graph.Call) ([]any, error) {
				seen = graph.Arg[value.VisionOutput](c, "seen")
				return nil, nil
			},
		}
		values := map[string]given{"ThePicture": {"IMAGE", visionPicture(of, r.Image)}}
		runner, err := graph.NewRunner(graph.Config{
			Engine: eng, Roots: files.Roots{Models: []string{root}}, Catalogue: All(append(giving(values, nil), watch)...),
		})
		check(t, err)
		defer runner.Close()
		g := newGraph()
		g.add("Watch", "seen", g.add("CLIPVisionEncode", "clip_vision", g.add("CLIPVisionLoader", "clip_name",
			model+".safetensors"), "image", g.add("ThePicture"), "crop", r.Crop))
		_, err = runner.Run(t.Context(), graph.Job{ID: "v", Workflow: g.workflow(t)}, nil)
		check(t, err)
		worst, err := goldenrun.Compare(seen.Data, tensorOf(t, visionRecord, name), 2e-5)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		before, err := seen.Before("", 1)
		check(t, err)
		want := tensorOf(t, visionRecord, name+"#penultimate")
		other, err := goldenrun.Compare(before.Data, want[:len(want)/r.Image[0]], 2e-5)
		if err != nil {
			t.Errorf("%s, before the last layer: %v", name, err)
		}
		t.Logf("%s: %.2g and %.2g, bound 2e-5", name, worst, other)
	}
	if n != 11 {
		t.Errorf("%d pictures were compared, want 11", n)
	}
}

// run runs the nodes of a recorded run and returns the latent.
func (r *visionRun) run(t *testing.T, eng *parallel.Pool, root, name string) ([]float32, error) {
	t.Helper()
	text := func(side string) given {
		rows, cols := r.Context[1], r.Context[2]
		data := golden.Input("clip_vision/"+name+"/"+side, rows*cols)
		return given{"CONDITIONING", value.Conditioning{{
			Entry: dit.Entry{Context: dit.Array{Rows: rows, Cols: cols, Data: data}}, MaskStrength: 1,
		}}}
	}
	values, got, g := map[string]given{"Positive": text("positive"), "Negative": text("negative")},
		map[string]*value.Latent{}, newGraph()
	eyes, batch := r.eyes, max(r.batch, 1)
	if eyes == "" {
		eyes = "clipvision-h"
	}
	inputs := []any{
		"positive", g.add("Positive"), "negative", g.add("Negative"), "vae", g.add("VAELoader", "vae_name",
			"wan21vae-a.safetensors"), "width", int64(64), "height", int64(48), "length", int64(5), "batch_size", batch,
	}
	for _, field := range slices.Sorted(maps.Keys(r.Inputs)) {
		values[field] = given{"IMAGE", visionPicture(name+"/"+field, r.Inputs[field])}
		link := g.add(field)
		if strings.HasPrefix(field, "clip_") {
			link = g.add("CLIPVisionEncode", "clip_vision", g.add("CLIPVisionLoader", "clip_name", eyes+".safetensors"),
				"image", link, "crop", "center")
		}
		inputs = append(inputs, field, link)
	}
	made := g.add(r.Node, inputs...)
	g.add("Keep", "latent", g.add("KSampler", "model", g.add("UNETLoader", "unet_name", r.Model+".safetensors",
		"weight_dtype", "default"), "positive", made, "negative", second(made), "latent_image", []any{made[0], int64(2)},
		"seed", r.Seed, "steps", r.Steps, "cfg", r.CFG, "sampler_name", "euler", "scheduler", "simple", "denoise", 1.0),
		"as", "output")
	runner, err := graph.NewRunner(graph.Config{
		Engine: eng, Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(values, got)...),
	})
	check(t, err)
	defer runner.Close()
	if _, err := runner.Run(t.Context(), graph.Job{ID: "v", Workflow: g.workflow(t), Plan: r.plan}, nil); err != nil {
		return nil, err
	}
	return got["output"].Samples.Data, nil
}

// TestWanSeesPictures compares runs whose blocks read what a picture encoder sees with ComfyUI 0.33.0, from pictures to
// latents: image to video, the first of two pictures, first and last frame, and the last one alone. Plans that split a
// run give the same.
func TestWanSeesPictures(t *testing.T) {
	root, eng, n := visionRoot(t), engineOf(t, fastOps), 0
	for name, r := range visionRuns(t) {
		if r.Node == "" {
			continue
		}
		n++
		for _, r.plan = range []string{"", "ulysses=2,tensor=2", "cfg=2,ring=3", "pipe=2,patches=2,warmup=99"} {
			if r.plan != "" && testing.Short() {
				continue
			}
			got, err := r.run(t, eng, root, name)
			if err != nil {
				t.Fatalf("%s %q: %v", name, r.plan, err)
			}
			rel := relative(got, tensorOf(t, visionRecord, name))
			if t.Logf("%s %q: relative difference %.2g, bound 2e-5", name, r.plan, rel); !(rel <= 2e-5) {
				t.Errorf("%s %q: relative difference %.3g, bound 2e-5", name, r.plan, rel)
			}
		}
	}
	if n != 4 {
		t.Errorf("%d runs were compared, want 4", n)
	}
}

// TestWrongPictureEncodersAreRefusedByName checks that errors name the node, the field and what is allowed.
func TestWrongPictureEncodersAreRefusedByName(t *testing.T) {
	root, eng := visionRoot(t), engineOf(t, fastOps)
	for name, c := range map[string]struct {
		change            func(*visionRun)
		code, field, says string
	}{
		"another width": {
			func(r *visionRun) { r.eyes = "clipvision-a" }, fault.WrongFamily, "positive",
			"has states of 40 values, the wan model reads 1280: use the picture encoder that it was made for (clip_vision_h)",
		},
		"SigLIP": {
			func(r *visionRun) { r.eyes = "siglip-a" }, fault.WrongFamily, "positive", "states of 28 values",
		},
		"two pictures for two videos": {
			func(r *visionRun) { r.batch, r.Inputs["clip_vision_output"][0] = 2, 2 }, fault.BadInput, "clip_vision_output",
			"2 pictures for 2 videos: want one picture",
		},
		"a long picture": {
			func(r *visionRun) { r.Inputs["clip_vision_output"] = []int{1, 1, 1 << 19, 3} }, fault.BadInput, "image",
			"524288 x 1 pixels become 14680064 x 28 before they are cropped",
		},
		"a mask": {
			func(r *visionRun) { r.Inputs["clip_vision_output"] = []int{1, 28, 28, 1} }, fault.BadInput, "image",
			"1 channels, picture encoders read red, green and blue",
		},
	} {
		r := &visionRun{
			Model: "wan-i2v21-a", Node: "WanImageToVideo", Steps: 1, CFG: 1, Context: []int{1, 3, 4096},
			Inputs: map[string][]int{"clip_vision_output": {1, 28, 28, 3}},
		}
		c.change(r)
		_, err := r.run(t, eng, root, name)
		if f := fault.From(err); err == nil || f.Code != c.code || f.Field != c.field || f.Node == "" ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %+v (%v), want %s of field %q and %q", name, f, err, c.code, c.field, c.says)
		}
	}
}
