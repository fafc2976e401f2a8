package classes

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/race"
	"patchbay/tests/scratch"
)

// ramp returns a tensor of the values base, base + 1 ..., which identify their positions.
func ramp(base float64, shape ...int) *array.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(base + float64(i))
	}
	return array.New(v, shape...)
}

func latentValue(samples *array.Tensor, more ...any) map[string]any {
	m := map[string]any{"samples": samples}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}

// TestLatentMath compares with independent formulas in float64.
func TestLatentMath(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	a, b := ramp(1, 2, 3, 1, 2), ramp(-4, 1, 3, 1, 2)
	av, bv := values(t, a), values(t, b)
	samples := func(class string, in map[string]any) []float32 {
		o := exec(t, run, class, in).(*pyjson.Object)
		s, _ := o.Get("samples")
		return values(t, s)
	}
	both := func() map[string]any {
		return map[string]any{"samples1": latentValue(a), "samples2": latentValue(b)}
	}
	mixed := both()
	mixed["ratio"] = 0.25
	norm := func(v []float32, at int) float64 { // channels are two values apart
		return math.Sqrt(float64(v[at])*float64(v[at]) + float64(v[at+2])*float64(v[at+2]) +
			float64(v[at+4])*float64(v[at+4]))
	}
	for class, want := range map[string]func(i int) float64{
		"LatentAdd":      func(i int) float64 { return float64(av[i] + bv[i%6]) },
		"LatentSubtract": func(i int) float64 { return float64(av[i] - bv[i%6]) },
		"LatentMultiply": func(i int) float64 { return -2.5 * float64(av[i]) },
		"LatentInterpolate": func(i int) float64 {
			at := i/6*6 + i%2
			ma, mb := norm(av, at), norm(bv, at%6)
			mix := func(k int) float64 {
				return 0.25*float64(av[at+2*k])/ma + 0.75*float64(bv[(at+2*k)%6])/mb
			}
			return mix(i%6/2) / math.Sqrt(mix(0)*mix(0)+mix(1)*mix(1)+mix(2)*mix(2)) * (0.25*ma + 0.75*mb)
		},
	} {
		in := both()
		switch class {
		case "LatentMultiply":
			in = map[string]any{"samples": latentValue(a), "multiplier": -2.5}
		case "LatentInterpolate":
			in = mixed
		}
		for i, got := range samples(class, in) {
			if !(math.Abs(float64(got)-want(i)) <= 1e-5) {
				t.Errorf("%s: value %d is %v, want %v", class, i, got, want(i))
			}
		}
	}
	zero := samples("LatentInterpolate", map[string]any{
		"samples1": latentValue(ramp(0, 1, 1, 1, 1)),
		"samples2": latentValue(ramp(0, 1, 1, 1, 1)), "ratio": 0.5,
	})
	if zero[0] != 0 {
		t.Errorf("two empty latents give %v, want 0", zero[0])
	}
	_, err = run.Exec(t.Context(), graph.ExecRequest{
		Class:  "LatentAdd",
		Inputs: map[string]any{"samples1": latentValue(a), "samples2": latentValue(ramp(0, 1, 4, 1, 2))},
	}, nil)
	if err == nil || !strings.Contains(err.Error(), "samples2") {
		t.Errorf("3 and 4 channels: got %v, want an error about samples2", err)
	}
}

// TestLatentBatchKeepsPlaces checks that the items of both batches keep their batch_index, and so their noise.
func TestLatentBatchKeepsPlaces(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	o := exec(t, run, "LatentBatch", map[string]any{
		"samples1": latentValue(ramp(0, 2, 1, 2, 2)),
		"samples2": latentValue(ramp(8, 1, 1, 2, 2), "batch_index", []any{int64(5)}),
	}).(*pyjson.Object)
	s, _ := o.Get("samples")
	if got, want := values(t, s), values(t, ramp(0, 3, 1, 2, 2)); !slices.Equal(got, want) {
		t.Errorf("samples %v, want %v", got, want)
	}
	if index, _ := o.Get("batch_index"); string(pyjson.Dump(index)) != "[0, 1, 5]" {
		t.Errorf("batch_index %s, want [0, 1, 5]", pyjson.Dump(index))
	}
}

// TestLatentsKeepTheirScale checks that, as in ComfyUI, a class that changes a latent keeps the pixel scale that an
// empty latent was made for, and that sampling fits the latent to the model and drops the scale.
func TestLatentsKeepTheirScale(t *testing.T) {
	values := map[string]given{
		"Source": {"LATENT", &value.Latent{Samples: request.NewLatent(1, 4, 16, 16), Scale: 16}},
		"Mask":   {"MASK", rectangle(4, 4)}, "Model": {"MODEL", analyticModel(t)}, "Sigmas": {"SIGMAS", value.Sigmas{}},
		"Text": {"CONDITIONING", value.Conditioning{{Entry: dit.Entry{
			Context: dit.Array{Rows: 1, Cols: 1, Data: []float32{0}},
		}}}},
	}
	got := map[string]*value.Latent{}
	cat := All(giving(values, got)...)
	run, err := graph.NewRunner(graph.Config{Catalogue: cat})
	check(t, err)
	defer run.Close()
	g, changing := newGraph(), 0
	for _, name := range cat.Classes() {
		k, in := cat.Class(name), []any{}
		if len(k.Outputs) != 1 || k.Outputs[0].Type != "LATENT" {
			continue
		}
		for i := range k.Inputs {
			decl := &k.Inputs[i]
			switch preset, ok := decl.Options.Get("default"); {
			case decl.Type == "LATENT":
				in = append(in, decl.Name, g.add("Source"))
			case decl.Type == "MASK":
				in = append(in, decl.Name, g.add("Mask"))
			case ok:
				in = append(in, decl.Name, preset)
			case decl.Type == "COMBO" && len(decl.Choices) > 0:
				in = append(in, decl.Name, decl.Choices[0])
			}
		}
		takes := func(in graph.Input) bool { return in.Type == "LATENT" }
		if len(in) == 2*len(k.Inputs) && slices.ContainsFunc(k.Inputs, takes) {
			changing++
			g.add("Keep", "latent", g.add(name, in...), "as", name)
		}
	}
	sampled := g.add("Source")
	for range 2 {
		sampled = g.add("SamplerCustomAdvanced", "noise", g.add("DisableNoise"), "guider",
			g.add("BasicGuider", "model", g.add("Model"), "conditioning", g.add("Text")), "sampler",
			g.add("KSamplerSelect", "sampler_name", "euler"), "sigmas", g.add("Sigmas"), "latent_image", sampled)
	}
	g.add("Keep", "latent", sampled, "as", "sampled")
	_, err = run.Run(t.Context(), graph.Job{ID: "scale", Workflow: g.workflow(t)}, nil)
	check(t, err)
	if l := got["sampled"]; l.Scale != 0 || l.Samples.X != 32 {
		t.Errorf("sampled twice: %d columns and a scale of %d, want 32 and 0", l.Samples.X, l.Scale)
	}
	delete(got, "sampled")
	for name, l := range got {
		if l.Scale != 16 {
			t.Errorf("%s: a scale of %d, want 16", name, l.Scale)
		}
	}
	if changing < 18 || len(got) != changing {
		t.Errorf("%d classes were tried, %d gave a latent: want 18 or more", changing, len(got))
	}
}

func TestImageBatchClasses(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	im := ramp(0, 3, 1, 2, 3)
	for _, c := range []struct {
		class string
		in    map[string]any
		shape []int
		first float32
	}{
		{"ImageFromBatch", map[string]any{"batch_index": 1, "length": 9}, []int{2, 1, 2, 3}, 6},
		{"ImageFromBatch", map[string]any{"batch_index": 7, "length": 1}, []int{1, 1, 2, 3}, 12},
		{"RepeatImageBatch", map[string]any{"amount": 2}, []int{6, 1, 2, 3}, 0},
		{
			"ImageScaleToMaxDimension",
			map[string]any{"upscale_method": "nearest-exact", "largest_size": 5},
			[]int{3, 2, 5, 3},
			0,
		},
		{"FluxKontextImageScale", map[string]any{}, []int{3, 720, 1456, 3}, 0}, // 2:1 is nearest to 1456:720
	} {
		if testing.Short() && c.class == "FluxKontextImageScale" {
			continue
		}
		c.in["image"] = im
		got := exec(t, run, c.class, c.in).(*array.Tensor)
		if v := values(t, got); !slices.Equal(got.Shape, c.shape) || c.class != "FluxKontextImageScale" && v[0] != c.first {
			t.Errorf("%s: shape %v, first value %v, want %v, %v", c.class, got.Shape, v[0], c.shape, c.first)
		}
	}
	out, err := run.Exec(t.Context(), graph.ExecRequest{Class: "GetImageSize", Inputs: map[string]any{"image": im}}, nil)
	if err != nil || string(pyjson.Dump(out.Outputs)) != "[2, 1, 3]" {
		t.Errorf("GetImageSize: %v, %v; want [2, 1, 3]", out, err)
	}
}

// TestAddNoise checks that a flow model mixes sigma*noise + (1-sigma)*latent, where sigma is the difference between the
// first and the last sigma, and that nothing changes without sigmas.
func TestAddNoise(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	model, noise := run.Hold(analyticModel(t), 0), exec(t, run, "RandomNoise", map[string]any{"noise_seed": 5})
	start := ramp(-3, 2, 4, 2, 2)
	add := func(sigmas ...float32) []float32 {
		o := exec(t, run, "AddNoise", map[string]any{
			"model": model, "noise": noise,
			"sigmas": array.New(sigmas, len(sigmas)), "latent_image": latentValue(start),
		})
		s, _ := o.(*pyjson.Object).Get("samples")
		return values(t, s)
	}
	drawn, _, err := sampling.PrepareNoise(5, 2, 16, nil)
	check(t, err)
	was := values(t, start)
	for name, c := range map[string]struct {
		sigmas []float32
		scale  float64
	}{"ends": {[]float32{0.9, 0.5, 0.25}, 0.65}, "one": {[]float32{0.75}, 0.75}} {
		for i, got := range add(c.sigmas...) {
			if want := c.scale*float64(drawn[i]) + (1-c.scale)*float64(was[i]); !(math.Abs(float64(got)-want) <= 1e-5) {
				t.Fatalf("%s: value %d is %v, want %v", name, i, got, want)
			}
		}
	}
}

// TestThreeEncoders loads encoders of three kinds in any order and uses some of them. Three empty texts give 77 zero
// tokens, and the CLIPs alone give no T5 tokens.
func TestThreeEncoders(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	root := t.TempDir()
	deepCLIP(t, filepath.Join(root, "text_encoders", "g.safetensors"))
	for from, to := range map[string]string{
		"text_encoders/demo_clip.safetensors": "text_encoders/l.safetensors",
		"text_encoders/demo_t5.safetensors":   "text_encoders/t5.safetensors",
		"tokenizers/demo_clip.tokenizer.json": "tokenizers/clip.tokenizer.json",
		"tokenizers/demo_t5.tokenizer.json":   "tokenizers/t5.tokenizer.json",
	} {
		copyFile(t, from, filepath.Join(root, to))
	}
	run, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps),
		Roots:  files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	defer run.Close()
	clip := exec(t, run, "TripleCLIPLoader",
		map[string]any{"clip_name1": "t5.safetensors", "clip_name2": "g.safetensors", "clip_name3": "l.safetensors"})
	encode := func(l, g, padding string) *array.Tensor {
		c := exec(t, run, "CLIPTextEncodeSD3", map[string]any{
			"clip": clip, "clip_l": l, "clip_g": g, "t5xxl": "",
			"empty_padding": padding,
		})
		return c.([]any)[0].([]any)[0].(*array.Tensor)
	}
	empty := encode("", "", "none")
	if !slices.Equal(empty.Shape, []int{1, 77, 4096}) || !zeroed(values(t, empty)) {
		t.Errorf("nothing to encode gives %v, want zeros [1 77 4096]", empty.Shape)
	}
	one := encode("a red heart", "", "none")
	if zeroed(values(t, one)) || one.Shape[1] >= 2*77 {
		t.Errorf("a prompt for CLIP-L gives %v, zeros %v", one.Shape, zeroed(values(t, one)))
	}
	_, err = run.Exec(t.Context(), graph.ExecRequest{
		Class:  "TripleCLIPLoader",
		Inputs: map[string]any{"clip_name1": "l.safetensors", "clip_name2": "g.safetensors", "clip_name3": "l.safetensors"},
	},
		nil)
	if err == nil || !strings.Contains(err.Error(), "two files are clip_l encoders") {
		t.Errorf("CLIP-L twice: %v", err)
	}
}

// deepCLIP writes the demo's CLIP with 31 layers, which makes it a CLIP-G. Copies of its first layer stand in for those
// that it lacks.
func deepCLIP(t *testing.T, path string) {
	t.Helper()
	file, err := safetensors.Open(filepath.Join("..", "..", "examples", "demo", "text_encoders", "demo_clip.safetensors"))
	check(t, err)
	defer file.Close()
	var out []safetensors.Tensor
	const layers, first = "text_model.encoder.layers.", "text_model.encoder.layers.0."
	for _, name := range file.Names() {
		e, _ := file.Entry(name)
		out = append(out, e)
		rest, ok := strings.CutPrefix(name, first)
		for i := 1; ok && i < 31; i++ {
			e.Name = fmt.Sprintf("%s%d.%s", layers, i, rest)
			if _, has := file.Entry(e.Name); !has {
				out = append(out, e)
			}
		}
	}
	var b bytes.Buffer
	check(t, safetensors.Write(&b, nil, out)) // no metadata, which has the old number of layers
	scratch.Write(t, path, b.Bytes())
}

func zeroed(v []float32) bool { return !slices.ContainsFunc(v, func(x float32) bool { return x != 0 }) }
