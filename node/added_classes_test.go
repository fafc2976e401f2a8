package node

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/models/tokenizer"
	"patchbay/parallel"
)

// ramp is a tensor whose values tell their place: base, base + 1 ...
func ramp(base float64, shape ...int) *Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(base + float64(i))
	}
	return NewTensor(v, shape...)
}

func latentValue(samples *Tensor, more ...any) map[string]any {
	m := map[string]any{"samples": samples}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}

// TestLatentMath compares with the formulas, written out once more in float64.
func TestLatentMath(t *testing.T) {
	run, err := NewRunner(Config{})
	check(t, err)
	defer run.Close()
	a, b := ramp(1, 2, 3, 1, 2), ramp(-4, 1, 3, 1, 2)
	av, bv := values(t, a), values(t, b)
	samples := func(class string, in map[string]any) []float32 {
		o := exec(t, run, class, in).(*Object)
		s, _ := o.Get("samples")
		return values(t, s)
	}
	both := func() map[string]any {
		return map[string]any{"samples1": latentValue(a), "samples2": latentValue(b)}
	}
	mixed := both()
	mixed["ratio"] = 0.25
	norm := func(v []float32, at int) float64 { // channels lie two values apart
		return math.Sqrt(float64(v[at])*float64(v[at]) + float64(v[at+2])*float64(v[at+2]) + float64(v[at+4])*float64(v[at+4]))
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
	zero := samples("LatentInterpolate", map[string]any{"samples1": latentValue(ramp(0, 1, 1, 1, 1)), "samples2": latentValue(ramp(0, 1, 1, 1, 1)), "ratio": 0.5})
	if zero[0] != 0 {
		t.Errorf("two empty latents give %v, want 0", zero[0])
	}
	_, err = run.Exec(t.Context(), ExecRequest{Class: "LatentAdd", Inputs: map[string]any{"samples1": latentValue(a), "samples2": latentValue(ramp(0, 1, 4, 1, 2))}}, nil)
	if err == nil || !strings.Contains(err.Error(), "samples2") {
		t.Errorf("3 and 4 channels: got %v, want an error about samples2", err)
	}
}

// TestLatentBatchKeepsPlaces: the items of both batches keep the noise that they had.
func TestLatentBatchKeepsPlaces(t *testing.T) {
	run, err := NewRunner(Config{})
	check(t, err)
	defer run.Close()
	o := exec(t, run, "LatentBatch", map[string]any{
		"samples1": latentValue(ramp(0, 2, 1, 2, 2)), "samples2": latentValue(ramp(8, 1, 1, 2, 2), "batch_index", []any{int64(5)}),
	}).(*Object)
	s, _ := o.Get("samples")
	if got, want := values(t, s), values(t, ramp(0, 3, 1, 2, 2)); !slices.Equal(got, want) {
		t.Errorf("samples %v, want %v", got, want)
	}
	if index, _ := o.Get("batch_index"); string(DumpJSON(index)) != "[0, 1, 5]" {
		t.Errorf("batch_index %s, want [0, 1, 5]", DumpJSON(index))
	}
}

func TestImageBatchClasses(t *testing.T) {
	run, err := NewRunner(Config{})
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
		{"ImageScaleToMaxDimension", map[string]any{"upscale_method": "nearest-exact", "largest_size": 5}, []int{3, 2, 5, 3}, 0},
		{"FluxKontextImageScale", map[string]any{}, []int{3, 720, 1456, 3}, 0}, // 2:1 is nearest to 1456:720
	} {
		if testing.Short() && c.class == "FluxKontextImageScale" {
			continue
		}
		c.in["image"] = im
		got := exec(t, run, c.class, c.in).(*Tensor)
		if v := values(t, got); !slices.Equal(got.Shape, c.shape) || c.class != "FluxKontextImageScale" && v[0] != c.first {
			t.Errorf("%s: shape %v, first value %v, want %v, %v", c.class, got.Shape, v[0], c.shape, c.first)
		}
	}
	out, err := run.Exec(t.Context(), ExecRequest{Class: "GetImageSize", Inputs: map[string]any{"image": im}}, nil)
	if err != nil || string(DumpJSON(out.Outputs)) != "[2, 1, 3]" {
		t.Errorf("GetImageSize: %v, %v; want [2, 1, 3]", out, err)
	}
}

// TestNewClassEntries pins the entries of classes that no record has, by the declarations of ComfyUI 0.8.0.
func TestNewClassEntries(t *testing.T) {
	cat := NewCatalogue()
	shape := func(name string) string {
		o := cat.Class(name).info(&Roots{})
		in, _ := o.Get("input_order")
		out, _ := o.Get("output")
		category, _ := o.Get("category")
		return string(DumpJSON([]any{in, out, category}))
	}
	for name, want := range map[string]string{
		"CLIPTextEncodeSD3":        `[{"required": ["clip", "clip_l", "clip_g", "t5xxl", "empty_padding"]}, ["CONDITIONING"], "advanced/conditioning"]`,
		"SamplerEulerCFGpp":        `[{"required": ["version"]}, ["SAMPLER"], "_for_testing"]`,
		"LatentSubtract":           `[{"required": ["samples1", "samples2"]}, ["LATENT"], "latent/advanced"]`,
		"ExtendIntermediateSigmas": `[{"required": ["sigmas", "steps", "start_at_sigma", "end_at_sigma", "spacing"]}, ["SIGMAS"], "sampling/custom_sampling/sigmas"]`,
		"SamplingPercentToSigma":   `[{"required": ["model", "sampling_percent", "return_actual_sigma"]}, ["FLOAT"], "sampling/custom_sampling/sigmas"]`,
	} {
		if got := shape(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestTellsTheWholePicture: PixArt-Alpha and HunyuanDiT hear the size of the picture also where an entry covers a part of it, or the size that
// CLIPTextEncodePixArtAlpha names.
func TestTellsTheWholePicture(t *testing.T) {
	latent := parallel.NewLatent(1, 4, 16, 24)
	for _, c := range []struct {
		family string
		pixels [2]int
		want   []float32
	}{
		{"hunyuandit", [2]int{}, []float32{128, 192, 128, 192, 0, 0}},
		{"hunyuandit", [2]int{512, 256}, []float32{512, 256, 512, 256, 0, 0}},
		{"pixart", [2]int{}, []float32{128, 192, 128. / 192}},
		{"pixart", [2]int{512, 256}, []float32{512, 256, 2}},
		{"flux", [2]int{512, 256}, nil},
	} {
		m := &Model{Spec: &dit.Spec{Family: c.family, ContextDim: 1}}
		b, err := m.branch(GuiderBranch{"positive", Conditioning{{
			Context: dit.Array{Rows: 1, Cols: 1, Data: []float32{1}}, Area: parallel.Area{H: 8, W: 8}, Pixels: c.pixels,
		}}}, latent)
		check(t, err)
		if got := b.Entries[0].Size; !slices.Equal(got, c.want) {
			t.Errorf("%s told %v: size %v, want %v", c.family, c.pixels, got, c.want)
		}
	}
}

// TestSD3Prompts: which encoders CLIPTextEncodeSD3 asks, and that both CLIPs get as many chunks.
func TestSD3Prompts(t *testing.T) {
	run, err := NewRunner(Config{Roots: demoRoots()})
	check(t, err)
	defer run.Close()
	handle := exec(t, run, "CLIPLoader", map[string]any{"clip_name": "demo_clip.safetensors", "type": "stable_diffusion"})
	v, _ := run.handles.use(handle.(Handle).ID)
	demo := v.(*Clip)
	clip := &Clip{Type: "sd3", parts: []encoder{demo.parts[0], demo.parts[0]}}
	clip.parts[1].kind = "clip_g"
	c := &Call{run: run, Class: run.cat.Class("CLIPTextEncodeSD3")}
	long := strings.Repeat("a red heart and a blue star ", 30)
	got, err := c.prompts(clip, func(key string) (string, bool) { return map[string]string{"clip_l": long}[key], true })
	check(t, err)
	l, g := got["clip_l"].Chunks, got["clip_g"].Chunks
	if len(l) < 2 || len(g) != len(l) {
		t.Fatalf("%d chunks for CLIP-L, %d for CLIP-G: want the same number, at least 2", len(l), len(g))
	}
	if !slices.EqualFunc(g[0], g[1], func(a, b tokenizer.Token) bool { return a.ID == b.ID }) {
		t.Errorf("the chunks behind an empty prompt differ from it: %v, %v", g[0], g[1])
	}
	got, err = c.prompts(clip, func(key string) (string, bool) { return "x", key == "clip_g" })
	check(t, err)
	if _, asked := got["clip_l"]; asked || len(got) != 1 {
		t.Errorf("asked %d encoders, want clip_g alone", len(got))
	}
}

// TestAddNoise: a flow model mixes sigma*noise + (1-sigma)*latent, with the distance of the ends as sigma; nothing happens without sigmas.
func TestAddNoise(t *testing.T) {
	run, err := NewRunner(Config{})
	check(t, err)
	defer run.Close()
	model, noise := run.handles.grant(analyticModel(t), 0), exec(t, run, "RandomNoise", map[string]any{"noise_seed": 5})
	start := ramp(-3, 2, 4, 2, 2)
	add := func(sigmas ...float32) []float32 {
		o := exec(t, run, "AddNoise", map[string]any{"model": model, "noise": noise, "sigmas": NewTensor(sigmas, len(sigmas)), "latent_image": latentValue(start)})
		s, _ := o.(*Object).Get("samples")
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

// TestThreeEncoders loads encoders of three kinds in any order and asks some of them: all empty gives 77 zero tokens, the CLIPs alone no tokens of T5.
func TestThreeEncoders(t *testing.T) {
	root := t.TempDir()
	deepCLIP(t, filepath.Join(root, "text_encoders", "g.safetensors"))
	for from, to := range map[string]string{
		"text_encoders/demo_clip.safetensors": "text_encoders/l.safetensors", "text_encoders/demo_t5.safetensors": "text_encoders/t5.safetensors",
		"tokenizers/demo_clip.tokenizer.json": "tokenizers/clip.tokenizer.json", "tokenizers/demo_t5.tokenizer.json": "tokenizers/t5.tokenizer.json",
	} {
		copyFile(t, from, filepath.Join(root, to))
	}
	run, err := NewRunner(Config{Engine: engineOf(t, fastOps), Roots: Roots{Models: []string{root}}})
	check(t, err)
	defer run.Close()
	clip := exec(t, run, "TripleCLIPLoader", map[string]any{"clip_name1": "t5.safetensors", "clip_name2": "g.safetensors", "clip_name3": "l.safetensors"})
	encode := func(l, g, padding string) *Tensor {
		c := exec(t, run, "CLIPTextEncodeSD3", map[string]any{"clip": clip, "clip_l": l, "clip_g": g, "t5xxl": "", "empty_padding": padding})
		return c.([]any)[0].([]any)[0].(*Tensor)
	}
	empty := encode("", "", "none")
	if !slices.Equal(empty.Shape, []int{1, 77, 4096}) || !allZero(values(t, empty)) {
		t.Errorf("nothing to encode gives %v, want zeros [1 77 4096]", empty.Shape)
	}
	one := encode("a red heart", "", "none")
	if allZero(values(t, one)) || one.Shape[1] >= 2*77 {
		t.Errorf("a prompt for CLIP-L gives %v, zeros %v", one.Shape, allZero(values(t, one)))
	}
	_, err = run.Exec(t.Context(), ExecRequest{Class: "TripleCLIPLoader", Inputs: map[string]any{"clip_name1": "l.safetensors", "clip_name2": "g.safetensors", "clip_name3": "l.safetensors"}}, nil)
	if err == nil || !strings.Contains(err.Error(), "two files are clip_l encoders") {
		t.Errorf("CLIP-L twice: %v", err)
	}
}

// deepCLIP writes the demo's CLIP with 31 layers, which makes it a CLIP-G: layers that it lacks are its first once more.
func deepCLIP(t *testing.T, path string) {
	t.Helper()
	file, err := safetensors.Open(filepath.Join("..", "examples", "demo", "text_encoders", "demo_clip.safetensors"))
	check(t, err)
	defer file.Close()
	var out []safetensors.Entry
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
	check(t, safetensors.Write(&b, nil, out)) // the metadata say how many layers there were
	write(t, path, b.Bytes())
}
