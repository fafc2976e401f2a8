package classes

import (
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// netRun is a run of two steps of a small model, by default FLUX, with control nets in its folder: union.safetensors
// with ten types, three.safetensors with the first three of them, and nets of other kinds and families.
type netRun struct {
	t    *testing.T
	root string
	vae  string
	mask *picture.Mask // the value of TheMask
	many int           // images of TheHint minus one
	wide int           // columns of TheLatent minus 4
	eng  *parallel.Pool
	e2eCase
}

func newNetRun(t *testing.T) *netRun {
	t.Helper()
	r := &netRun{t: t, root: t.TempDir(), vae: "ae", eng: engineOf(t, fastOps), e2eCase: e2eCase{Model: "kontext-a"}}
	for file, name := range map[string]string{
		"union": "cn-union-a", "three": "cn-union-a", "qwen": "cn-qwen-a", "inpaint": "cn-qwen-inpaint-a",
		"xlabs": "cn-xlabs-a", "fun": "cn-fun-a",
	} {
		set, config, err := goldenweights.Set(name)
		check(t, err)
		var c map[string]any
		check(t, json.Unmarshal(config, &c))
		c["axes_dim"], c["axes_dims_rope"] = []int{8, 16, 16}, []int{8, 16, 16} // not determined by names and shapes
		text, err := json.Marshal(c)
		check(t, err)
		all := map[string]weights.Stored{}
		for _, n := range set.Names() {
			all[n], _ = set.Get(n)
		}
		if rows, ok := all[modes]; ok && file == "three" {
			width := rows.Shape[1]
			all[modes] = weights.Stored{DType: rows.DType, Shape: []int{3, width}, Data: rows.Elements(0, 3*width)}
		}
		writeModel(t, filepath.Join(r.root, "controlnet", file+".safetensors"), weights.FromMap(all), string(text),
			strings.Clone)
	}
	writeGoldenModel(t, "wanvae-a", "", filepath.Join(r.root, "vae", "wan.safetensors"))
	writeGolden(t, "vae-kl", filepath.Join(r.root, "controlnet", "vae.safetensors"))
	_, config, err := goldenweights.Set("vae-flux")
	check(t, err)
	writeGoldenWith(t, "vae-flux", filepath.Join(r.root, "vae", "ae.safetensors"),
		map[string]string{"config": string(config)})
	return r
}

// modes is the tensor whose rows are the types of a union net.
const modes = "controlnet_mode_embedder.weight"

// netStep is one application of a net; empty fields are the defaults of the class.
type netStep struct {
	class, file, kind string
	in                map[string]any // inputs besides links; "vae": nil leaves it out
}

// run samples with nets applied one after the other, from a hint of 33 x 21 pixels, a size that no latent has.
func (r *netRun) run(steps ...netStep) ([]float32, error) {
	r.t.Helper()
	m := r.model(r.t)
	text := value.Conditioning{{
		Entry: dit.Entry{Context: dit.Array{
			Rows: 5, Cols: m.Spec.ContextDim, Data: golden.Input("nets/context", 5*m.Spec.ContextDim),
		}, Pooled: golden.Input("nets/pooled", m.Spec.PooledDim)},
		MaskStrength: 1,
	}}
	got := map[string]*value.Latent{}
	run, err := graph.NewRunner(graph.Config{
		Engine: r.eng, Roots: files.Roots{Models: []string{r.root}},
		Catalogue: All(giving(map[string]given{
			"TheModel": {"MODEL", m}, "TheText": {"CONDITIONING", text},
			"TheHint": {"IMAGE", &picture.Image{
				B: 1 + r.many, Y: 33, X: 21, C: 3, Data: golden.Fill("nets/hint", (1+r.many)*33*21*3, 1, 0.5),
			}},
			"TheMask":   {"MASK", r.mask},
			"TheLatent": {"LATENT", &value.Latent{Samples: request.NewLatent(1, 16, 6, 4+r.wide)}},
		}, got)...),
	})
	check(r.t, err)
	defer run.Close()
	g := newGraph()
	positive := g.add("TheText")
	negative := positive
	for _, s := range steps {
		in := map[string]any{"strength": 0.5, "start_percent": 0.0, "end_percent": 1.0}
		net := g.add("ControlNetLoader", "control_net_name", s.file+".safetensors")
		if s.kind != "" {
			net = g.add("SetUnionControlNetType", "control_net", net, "type", s.kind)
		}
		in["vae"] = g.add("VAELoader", "vae_name", r.vae+".safetensors")
		maps.Copy(in, s.in)
		list := []any{"positive", positive, "negative", negative, "control_net", net, "image", g.add("TheHint")}
		for _, k := range []string{"strength", "start_percent", "end_percent", "vae"} {
			if in[k] != nil {
				list = append(list, k, in[k])
			}
		}
		if s.class == filling {
			list = append(list, "mask", g.add("TheMask"))
		}
		positive = g.add(s.class, list...)
		negative = second(positive)
	}
	g.add("Keep", "latent", g.add("KSampler", "model", g.add("TheModel"), "positive", positive, "negative", negative,
		"latent_image", g.add("TheLatent"), "steps", int64(2), "cfg", 2.0, "sampler_name", "euler", "scheduler", "simple",
		"seed", int64(7), "denoise", 1.0), "as", "output")
	if _, err := run.Run(r.t.Context(), graph.Job{ID: "nets", Workflow: g.workflow(r.t)}, nil); err != nil {
		return nil, err
	}
	return got["output"].Samples.Data, nil
}

const (
	advanced = "ControlNetApplyAdvanced"
	withVAE  = "ControlNetApplySD3"
	filling  = "ControlNetInpaintingAliMamaApply"
)

// TestControlNetsThroughNodes checks that the inputs of the control net nodes reach the network.
func TestControlNetsThroughNodes(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	r := newNetRun(t)
	type in = map[string]any
	draw := func(steps ...netStep) []float32 {
		t.Helper()
		out, err := r.run(steps...)
		if err != nil {
			t.Fatalf("%+v: %v", steps, err)
		}
		return out
	}
	of := func(class, kind string, set in) netStep { return netStep{class, "union", kind, set} }
	none := draw()
	half, typed := draw(of(advanced, "", nil)), draw(of(advanced, "depth", nil))
	for name, c := range map[string]struct {
		got, want []float32
		same      bool
	}{
		"strength 0":        {draw(of(advanced, "depth", in{"strength": 0.0})), none, true},
		"strength 0.5":      {half, none, false},
		"a type":            {typed, half, false},
		"another type":      {draw(of(advanced, "openpose", nil)), typed, false},
		"type auto":         {draw(of(advanced, "auto", nil)), half, true},
		"strength 1":        {draw(of(advanced, "", in{"strength": 1.0})), half, false},
		"the other class":   {draw(of(withVAE, "depth", nil)), typed, true},
		"first step alone":  {draw(of(advanced, "", in{"end_percent": 0.0})), half, false},
		"begins at the end": {draw(of(advanced, "", in{"start_percent": 1.0})), none, true},
		"part of the run":   {draw(of(advanced, "", in{"start_percent": 0.5})), none, false},
		"less than the run": {draw(of(advanced, "", in{"start_percent": 0.5})), half, false},
		"one net twice": {
			draw(of(advanced, "", nil), of(advanced, "", nil)), draw(of(advanced, "", in{"strength": 1.0})), true,
		},
		"two nets": {draw(of(advanced, "", nil), of(advanced, "depth", nil)), half, false},
		"two in the other order": {
			draw(of(advanced, "", nil), of(withVAE, "depth", nil)),
			draw(of(advanced, "depth", nil), of(advanced, "", nil)), true,
		},
	} {
		rel := relative(c.got, c.want)
		if c.same && !(rel <= 1e-5) || !c.same && !(rel >= 1e-3) {
			t.Errorf("%s: relative difference %.3g, want the same: %v", name, rel, c.same)
		}
	}
}

// TestControlNetsAreRefusedByName checks that errors name the node, the field and what is allowed.
func TestControlNetsAreRefusedByName(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	r := newNetRun(t)
	type in = map[string]any
	for name, c := range map[string]struct {
		step              netStep
		node, field, says string
	}{
		"another family": {netStep{advanced, "qwen", "", nil}, "", "positive", "it is for qwenimage models of width"},
		"no VAE":         {netStep{advanced, "union", "", in{"vae": nil}}, "", "positive", "connect the input vae"},
		"a type beyond the net's": {
			netStep{advanced, "three", "repaint", nil},
			"SetUnionControlNetType", "type",
			"repaint is row 7, three.safetensors has types for rows 0 to 2",
		},
		"no control net": {
			netStep{advanced, "vae", "", nil}, "ControlNetLoader", "control_net_name", "vae.safetensors: not a control net",
		},
	} {
		_, err := r.run(c.step)
		f := fault.From(err)
		if err == nil || !errors.As(err, &f) || f.Field != c.field || f.Node == "" ||
			!strings.Contains(err.Error(), c.says) || (c.node != "" && f.Class != c.node) {
			t.Errorf("%s: got %+v (%v), want field %q and %q", name, f, err, c.field, c.says)
		}
	}
}

// TestNetsThatReadPictures checks that a VAE makes no difference to a net that reads the image itself, and that latents
// of odd sides, whose last tokens would be incomplete, are refused by name.
func TestNetsThatReadPictures(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	r := newNetRun(t)
	with, err := r.run(netStep{advanced, "xlabs", "", nil})
	check(t, err)
	without, err := r.run(netStep{advanced, "xlabs", "", map[string]any{"vae": nil}})
	check(t, err)
	none, err := r.run()
	check(t, err)
	if same, moved := relative(without, with), relative(with, none); !(same == 0) || !(moved >= 1e-3) {
		t.Errorf("relative difference without a VAE %.3g, want 0; without the net %.3g, want more than 1e-3", same, moved)
	}
	r.wide = 1
	const want = "it reads pictures of whole tokens: the latent is 5 x 6, want sides that are multiples of 2"
	if _, err := r.run(netStep{advanced, "xlabs", "", nil}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a latent of odd sides: got %v, want %q", err, want)
	}
}

// TestVideosAreNoHints checks that a net that borrows tensors of its model needs a model from a file, and that images
// that the autoencoder encodes to more than one latent frame are refused by name.
func TestVideosAreNoHints(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	r := newNetRun(t)
	r.Model, r.vae = "qwen-a", "wan"
	const want = "fun.safetensors: it starts with weights of the model, which must be those of a file"
	if _, err := r.run(netStep{advanced, "fun", "", nil}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a Fun net beside a model of no file: got %v, want %q", err, want)
	}
	for many, want := range map[int]string{
		3: "", 4: "qwen.safetensors: the hint is 5 pictures, which its VAE reads as a video: give one",
	} {
		r.many = many
		if _, err := r.run(netStep{advanced, "qwen", "", nil}); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d pictures: got error %v, want %q", 1+many, err, want)
		}
	}
}

// TestMaskOfAHint compares the pixels that a mask leaves with those of ComfyUI 0.33.0's
// ControlNetInpaintingAliMamaApply.
func TestMaskOfAHint(t *testing.T) {
	im := &picture.Image{B: 1, Y: 5, X: 7, C: 3, Data: slices.Repeat([]float32{1}, 5*7*3)}
	ctl := value.Control{Image: im}
	mask := &picture.Mask{B: 1, Y: 3, X: 4, Data: []float32{0, 0.2, 1, 0.9, 1, 0.45, 0.55, 0, 0.3, 0.7, 0.1, 1}}
	check(t, blackenMasked(&ctl, mask))
	for i, want := range "1110000" + "1110000" + "0010011" + "0001110" + "1101100" {
		for c := range 3 {
			if got, in := ctl.Image.Data[3*i+c], im.Data[3*i+c]; got != float32(want-'0') || in != 1 {
				t.Errorf("pixel %d of channel %d is %v, of the node's input %v, want %c and 1", i, c, got, in, want)
			}
		}
	}
	two := value.Control{Image: &picture.Image{B: 2, Y: 1, X: 1, C: 3, Data: make([]float32, 6)}}
	if err := blackenMasked(&two, &picture.Mask{B: 3, Y: 1, X: 1, Data: make([]float32, 3)}); err == nil ||
		!strings.Contains(err.Error(), "3 masks for 2 pictures") {
		t.Errorf("three masks for two pictures: got error %v", err)
	}
}

// TestMasksReachTheNet checks that an inpainting net gets the mask and nothing of the image under it, and the whole
// image without a mask or with one that hides nothing. Other nets ignore masks.
func TestMasksReachTheNet(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	r := newNetRun(t)
	r.Model, r.vae = "qwen-a", "wan"
	draw := func(file, class string, masked float32) []float32 {
		t.Helper()
		r.mask = &picture.Mask{B: 1, Y: 4, X: 6, Data: slices.Repeat([]float32{masked}, 24)}
		clear(r.mask.Data[:12])
		out, err := r.run(netStep{class, file, "", nil})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	whole := draw("inpaint", withVAE, 0)
	for name, c := range map[string]struct {
		got, want []float32
		same      bool
	}{
		"hides nothing": {draw("inpaint", filling, 0), whole, true},
		"hides half":    {draw("inpaint", filling, 1), whole, false},
		"mask alone":    {draw("inpaint", filling, 0.4), whole, false}, // rounds to 0 for the image
		"other net":     {draw("qwen", filling, 1), draw("qwen", withVAE, 0), true},
	} {
		rel := relative(c.got, c.want)
		if c.same && !(rel <= 1e-6) || !c.same && !(rel >= 1e-4) {
			t.Errorf("%s: relative difference %.3g, want the same: %v", name, rel, c.same)
		}
	}
}
