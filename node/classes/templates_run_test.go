package classes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/editor"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/parallel"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// standIns are small random files in the place of those that templates name, by "folder kind/type of the text
// encoder/name". The first that matches counts. Networks read states as wide as those of the encoders here.
var standIns = []struct {
	names *regexp.Regexp
	make  func(t *testing.T, path string)
}{
	{of(`diffusion_models//qwen_image_2\.1`), standInTiny("qwenimage21")},
	{of(`diffusion_models//qwen_image_layered`), standIn("qwen-c", nil)},
	{of(`diffusion_models//qwen_image`), standIn("qwen-a", nil)},
	{of(`diffusion_models//z_image`), standIn("zimage-a", nil)},
	{of(`diffusion_models//krea2`), standInTiny("krea2")},
	{of(`diffusion_models//flux3`), standInTiny("flux3")},
	{of(`diffusion_models//flux2`), standIn("flux2-a", nil)},
	{of(`diffusion_models//flux-2-klein`), standIn("flux2-b", nil)},
	{of(`diffusion_models//flux\.?1-fill`), standIn("fill-a", fluxWidths)},
	{of(`diffusion_models//flux`), standIn("kontext-a", fluxWidths)},
	{of(`diffusion_models//wan2\.2_i2v_high`), standIn("wan-i2v22-a", widths{4096: 48})},
	{of(`diffusion_models//wan2\.2_i2v_low`), standIn("wan-i2v22-b", widths{4096: 48})},
	{of(`diffusion_models//(minimax_h3|.*fasth3)`), standIn("h3-b", widths{56: 16})},
	{of(`diffusion_models//ltx-2\.5`), standIn("ltx-b", nil)},
	{of(`text_encoders/(lumina2)/qwen_3`), standIn("qwen3-a", nil)},
	{of(`text_encoders/flux2/qwen_3`), standIn("klein-qwen3-a", nil)},
	{of(`text_encoders/qwen_image/qwen_2\.5_vl`), standIn("qwen25vl-a", nil)},
	{of(`text_encoders/flux2/mistral_3`), standInMistral},
	{of(`text_encoders/(krea2|flux3)/qwen3vl_[48]b`), standInEyes("krea2-qwen3vl-a")},
	{of(`text_encoders/minimax/qwen3vl_32b`), standInEyes("h3te-a")},
	{of(`text_encoders/\w+/qwen3\.5`), standIn("qwen35-b", nil)},
	{of(`text_encoders/wan/umt5`), standInUMT5},
	{of(`text_encoders//gemma_3`), standInGemma},
	{of(`text_encoders/.*/gemma4-12b`), standInGemma4("gemma4-a", nil)},
	{of(`text_encoders/.*/gemma4_e2b`), standInGemma4("gemma4-e2", nil)},
	{of(`text_encoders/.*/gemma4_e4b`), standInGemma4("gemma4-e4", nil)},
	{of(`text_encoders/flux/clip_l`), standInDemo("text_encoders/demo_clip")},
	{of(`text_encoders/flux/t5xxl`), standInDemo("text_encoders/demo_t5")},
	{of(`vae//qwen_image_2\.1`), standIn("q21vae-a", nil)},
	{of(`vae//qwen_image_layered`), standIn("wanvae-b", nil)},
	{of(`vae//qwen_image_vae`), standIn("wanvae-a", nil)},
	{of(`vae//ae\.`), standInDemo("vae/demo_ae")},
	{of(`vae//(flux2|full_encoder)`), standIn("flux2vae-a", nil)},
	{of(`vae//wan_?2.1`), standIn("wan21vae-a", nil)},
	{of(`vae//minimax_h3_video`), standIn("h3vae-a", nil)},
	{of(`vae//minimax_h3_audio`), standIn("h3audio-a", nil)},
	{of(`vae//ltx-2\.5-video`), standIn("ltxvae-c", nil)},
	{of(`vae//ltx-2\.5-audio`), standIn("ltxaudio-b", nil)},
	{of(`checkpoints//ltx-2\.3`), standInLTX("ltx-b", "gemma3-b", "ltxvae-b", "ltxaudio-b")},
	{of(`checkpoints//ltx-2-`), standInLTX("ltx-a", "gemma3-a", "ltxvae-a", "ltxaudio-a")},
	{of(`checkpoints//flux1`), standInFLUX},
	{of(`checkpoints//sd_xl_refiner`), standInRefiner},
	{of(`checkpoints//sd_xl`), standInSDXL},
	{of(`latent_upscale_models//ltx`), standIn("ltxup-space", nil)},
	{of(`upscale_models//`), func(t *testing.T, path string) {
		set, err := goldenweights.Upscaler("old-x4")
		check(t, err)
		writeModel(t, path, set, "", strings.Clone)
	}},
	{of(`clip_vision//sigclip`), standIn("siglip-deep-a", nil)},
	{of(`clip_vision//clip_vision_h`), standIn("clipvision-a", nil)},
	{of(`model_patches//uso`), standIn("uso-a", nil)},
	{of(`model_patches//z-image.*fun`), standIn("fun-a", nil)},
	{of(`controlnet//.*fun`), func(t *testing.T, path string) {
		set, _, err := goldenweights.Set("cn-fun-a")
		check(t, err)
		_, config, err := goldenweights.Set("qwen-a")
		check(t, err)
		writeModel(t, path, set, string(config), strings.Clone)
	}},
}

func of(names string) *regexp.Regexp { return regexp.MustCompile("(?i)^" + names) }

// widths are sides of weights that are replaced, so that a network fits to another encoder than it was recorded with.
type widths map[int]int

// fluxWidths are those of the demo's encoders in place of the recorded ones.
var fluxWidths = widths{40: 128, 32: 128}

// refitted returns a golden model whose matrices read rows of other widths, and its configuration.
func refitted(t *testing.T, name string, to widths) (*weights.Set, string) {
	t.Helper()
	set, config, err := goldenweights.Set(name)
	check(t, err)
	out, text := map[string]weights.Stored{}, string(config)
	for _, n := range set.Names() {
		s, _ := set.Get(n)
		if w := to[s.Shape[len(s.Shape)-1]]; w > 0 && len(s.Shape) > 1 {
			shape := append(slices.Clone(s.Shape[:len(s.Shape)-1]), w)
			one := goldenweights.Seed(name, []weights.Declared{{Name: n, Shape: shape}})
			s, _ = one.Get(n)
		}
		out[n] = s
	}
	for from, w := range to {
		text = regexp.MustCompile(fmt.Sprintf(`("[a-z_]*(text|context|vec)[a-z_]*dim"): %d\b`, from)).ReplaceAllString(text,
			fmt.Sprintf("$1: %d", w))
	}
	return weights.FromMap(out), text
}

func standIn(name string, to widths) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		set, config := refitted(t, name, to)
		writeModel(t, path, set, config, strings.Clone)
	}
}

func standInTiny(family string) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		set, meta, err := tiny.Checkpoint(family)
		check(t, err)
		writeModel(t, path, set, meta["config"], strings.Clone)
	}
}

// standInEyes writes an encoder with a vision tower whose deep features are those of its layers 0, 2 and 3.
func standInEyes(name string) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		set, _, err := goldenweights.Set(name)
		check(t, err)
		writeModel(t, path, set, `{"vision": {"deepstack_visual_indexes": [0, 2, 3]}}`, strings.Clone)
	}
}

// inside is a file of a vocabulary as a tensor.
func inside(name string, data []byte) safetensors.Tensor {
	return safetensors.Tensor{Name: name, DType: engine.U8, Shape: []int{len(data)}, Data: datafile.Of(data)}
}

func standInMistral(t *testing.T, path string) {
	var words map[string]json.RawMessage
	var tekken struct{ JSON string }
	check(t, golden.JSON("modern/tokens.json", &words))
	check(t, json.Unmarshal(words["tekken_synthetic"], &tekken))
	writeGoldenModel(t, "mistral3-a", "", path, inside("tekken_model", []byte(tekken.JSON)))
}

func standInUMT5(t *testing.T, path string) {
	data, err := os.ReadFile(golden.Path("ltx/spiece_synthetic.model"))
	check(t, err)
	writeGoldenModel(t, "umt5-a", "", path, inside("spiece_model", data))
}

// standInGemma writes an encoder without the projection, which checkpoints have.
func standInGemma(t *testing.T, path string) {
	data, err := os.ReadFile(golden.Path("ltx/spiece_synthetic.model"))
	check(t, err)
	set, _, err := goldenweights.Set("gemma3-b")
	check(t, err)
	own := map[string]weights.Stored{}
	for _, n := range set.Names() {
		if !strings.HasPrefix(n, "text_embedding_projection.") {
			own[n], _ = set.Get(n)
		}
	}
	writeModel(t, path, weights.FromMap(own), "{}", strings.Clone, inside("spiece_model", data))
}

// parts collects what a checkpoint has, with its configurations by their names.
type parts struct {
	tensors []safetensors.Tensor
	meta    map[string]string
}

// add adds those tensors of a model whose names begin with only. Configurations of one name are joined.
func (p *parts) add(t *testing.T, name, prefix string, to widths, config, only string) {
	t.Helper()
	set, text := refitted(t, name, to)
	all := map[string]json.RawMessage{}
	for _, part := range []string{cmp.Or(p.meta[config], "{}"), text} {
		check(t, json.Unmarshal([]byte(part), &all))
	}
	joined, err := json.Marshal(all)
	check(t, err)
	p.meta[config] = string(joined)
	for _, n := range set.Names() {
		if s, _ := set.Get(n); strings.HasPrefix(n, only) {
			p.tensors = append(p.tensors, safetensors.Tensor{
				Name: prefix + n, DType: s.DType, Shape: s.Shape, Data: datafile.Of(s.Data),
			})
		}
	}
}

// standInLTX writes a checkpoint with everything except the language model.
func standInLTX(network, projection, vae, sound string) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		p := parts{meta: map[string]string{}}
		p.add(t, network, "model.diffusion_model.", nil, "config", "")
		p.add(t, projection, "", widths{384: 448}, "config", "text_embedding_projection.") // both read gemma3-b
		p.add(t, vae, "vae.", nil, "config", "")
		p.add(t, sound, "", nil, "config", "")
		writeTensors(t, path, p.meta, p.tensors)
	}
}

func standInSDXL(t *testing.T, path string) {
	p := parts{meta: map[string]string{}}
	p.add(t, "sdxl-a", "model.diffusion_model.", widths{40: 144, 1560: 1536 + 80}, "config", "")
	p.add(t, "sdxl-clip-l-a", "conditioner.embedders.0.transformer.", nil, "clip_l.config", "")
	p.add(t, "sdxl-clip-g-a", "conditioner.embedders.1.model.", nil, "clip_g.config", "")
	const layers = "conditioner.embedders.1.model.text_model.encoder.layers."
	for _, e := range slices.Clone(p.tensors) { // CLIP-G is known by its 31st layer
		for i := 4; i < 32; i++ {
			if rest, ok := strings.CutPrefix(e.Name, fmt.Sprint(layers, i%4, ".")); ok {
				more := e
				more.Name = fmt.Sprint(layers, i, ".", rest)
				p.tensors = append(p.tensors, more)
			}
		}
	}
	p.add(t, "vae-kl", "first_stage_model.", nil, "vae.config", "")
	writeTensors(t, path, p.meta, p.tensors)
}

// standInFLUX writes the demo as a checkpoint.
func standInFLUX(t *testing.T, path string) { fullCheckpoint(t, path) }

func standInDemo(name string) func(*testing.T, string) {
	return func(t *testing.T, path string) { copyFile(t, name+".safetensors", path) }
}

// writeLoRA writes a LoRA of rank 2 for the first matrix of an attention in a model's file.
func writeLoRA(t *testing.T, path, of, prefix string, meta map[string]string) {
	t.Helper()
	model, err := safetensors.Open(of)
	check(t, err)
	defer model.Close()
	for _, n := range model.Names() {
		e, _ := model.Entry(n)
		module, ok := strings.CutSuffix(strings.TrimPrefix(n, "model.diffusion_model."), ".weight")
		if !ok || len(e.Shape) != 2 || !strings.Contains(n, "att") || strings.Contains(n, "norm") {
			continue
		}
		made := goldenweights.Seed("lora", []weights.Declared{
			{Name: prefix + module + ".lora_A.weight", Shape: []int{2, e.Shape[1]}},
			{Name: prefix + module + ".lora_B.weight", Shape: []int{e.Shape[0], 2}},
		})
		var list []safetensors.Tensor
		for _, name := range made.Names() {
			m, _ := made.Get(name)
			list = append(list, safetensors.Tensor{Name: name, DType: m.DType, Shape: m.Shape, Data: datafile.Of(m.Data)})
		}
		writeTensors(t, path, meta, list)
		return
	}
	t.Fatalf("%s has no matrix of an attention", of)
}

// smallSizes makes sizes, lengths and steps of a workflow in API format small.
func smallSizes(cat *graph.Catalogue, api *pyjson.Object) {
	for _, id := range api.Keys() {
		node := api.In(id)
		class, inputs := node.Text("class_type"), node.In("inputs")
		for _, key := range inputs.Keys() {
			name := key[strings.LastIndexByte(key, '.')+1:]
			var v float64
			switch n := inputs.At(key).(type) {
			case int64:
				v = float64(n)
			case float64:
				v = n
			default:
				continue
			}
			primitive := class == "PrimitiveInt" || class == "PrimitiveFloat"
			most := map[string]float64{
				"megapixels": 0.02, "steps": 4, "length": 9, "frames_number": 9, "batch_size": 1, "upscale_by": 1, "max_length": 4,
			}[name]
			if v >= 256 && (primitive || strings.Contains("width height resolution longer_edge shorter_edge longer_size "+
				"shorter_size largest_size value", name)) {
				most = 128
			}
			if most == 0 && primitive {
				most = map[string]float64{"PrimitiveInt": 2, "PrimitiveFloat": 1}[class]
			}
			if most == 0 || v <= most {
				continue
			}
			most = max(most, leastOf(cat, class, key))
			if _, whole := inputs.At(key).(int64); whole && most == math.Trunc(most) {
				inputs.Set(key, int64(most))
			} else {
				inputs.Set(key, most)
			}
		}
	}
}

// leastOf returns the smallest value of an input, 0 where none is stated.
func leastOf(cat *graph.Catalogue, class, key string) float64 {
	k := cat.Class(class)
	if k == nil {
		return 0
	}
	for _, in := range k.Inputs {
		if in.Name == key && in.Options != nil {
			switch v := in.Options.At("min").(type) {
			case int64:
				return max(0, float64(v))
			case float64:
				return max(0, v)
			}
		}
	}
	return 0
}

// templateFiles makes the files of templates, each form once.
type templateFiles struct {
	dir, tokenizers string
	demo            string // the folder with tokenizers of the demo's encoders, which FLUX has here
	made            map[string]string
}

func (f *templateFiles) put(t *testing.T, key, path string) error {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	for i, s := range standIns {
		if !s.names.MatchString(key) {
			continue
		}
		at := f.made[fmt.Sprint(i)]
		if at == "" {
			at = filepath.Join(f.dir, fmt.Sprint(i)+filepath.Ext(path))
			s.make(t, at)
			f.made[fmt.Sprint(i)] = at
		}
		return os.Link(at, path)
	}
	return fmt.Errorf("%w %s", errNoStandIn, key)
}

// errNoStandIn is of files of kinds that this program does not read.
var errNoStandIn = errors.New("nothing stands for")

// waiting lists the templates that do not run yet, by what the error says.
var waiting = map[string]string{"image_minimax_h3_t2i": "has no sound"}

// input writes a picture, a sound or a video.
func (f *templateFiles) input(t *testing.T, path string) {
	t.Helper()
	from := ""
	switch strings.ToLower(filepath.Ext(path)) {
	case ".mp4", ".webm", ".mkv", ".mov":
		from = "media/h264_00001_.mp4"
	case ".mp3", ".wav", ".flac", ".m4a", ".ogg":
		from = "media/flac_00001.flac"
	default:
		im := image.NewNRGBA(image.Rect(0, 0, 96, 64))
		for y := range 64 {
			for x := range 96 {
				im.Set(x, y, color.NRGBA{uint8(2 * x), uint8(4 * y), uint8(x * y), 255})
			}
		}
		var b bytes.Buffer
		check(t, png.Encode(&b, im))
		scratch.Write(t, path, b.Bytes())
		return
	}
	data, err := os.ReadFile(golden.Path(from))
	check(t, err)
	scratch.Write(t, path, data)
}

// TestTemplatesRun runs the official workflows that convert and validate with small random files in the place of
// those that they name, at small sizes and with few steps, and prints by family which share of their use runs and why
// others do not. It fails where a template does not run for another reason than a file that nothing stands for here.
// PATCHBAY_TEMPLATES is that of TestTemplatesValidate, PATCHBAY_TEST_TOKENIZERS names a folder with clip
// and qwen2.5.
func TestTemplatesRun(t *testing.T) {
	dir := os.Getenv("PATCHBAY_TEMPLATES")
	if dir == "" {
		t.Skip("NOT RUN: PATCHBAY_TEMPLATES names no folder with ComfyUI's workflow templates")
	}
	words := cmp.Or(os.Getenv("PATCHBAY_TEST_TOKENIZERS"), filepath.Join("..", "..", "..", "shared", "tokenizers"))
	made := templateFiles{dir: t.TempDir(), tokenizers: t.TempDir(), demo: t.TempDir(), made: map[string]string{}}
	for to, from := range map[string]string{"qwen3": "qwen2.5", "qwen35": "qwen2.5", "clip": "clip"} {
		found, err := filepath.Glob(filepath.Join(words, from, "*"))
		check(t, err)
		if len(found) == 0 {
			t.Skipf("NOT RUN: %s holds no vocabulary; PATCHBAY_TEST_TOKENIZERS names a folder with qwen2.5 and clip", words)
		}
		for _, path := range found {
			data, err := os.ReadFile(path)
			check(t, err)
			scratch.Write(t, filepath.Join(made.tokenizers, "tokenizers", to, filepath.Base(path)), data)
		}
	}
	for _, n := range []string{"clip", "t5"} {
		copyFile(t, "tokenizers/demo_"+n+".tokenizer.json", filepath.Join(made.demo, "tokenizers", n+".tokenizer.json"))
	}
	cat, pool := All(), engineOf(t, fastOps)
	type count struct{ templates, use, ran, useRan int64 }
	counts := map[string]*count{"all": {}}
	var total int64
	for _, p := range templatesIn(t, dir) {
		total += p.usage
		if !p.known || wrongWith(t, cat, cat.WithoutFiles, p.graph) != "" {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			kind := familyOf(p.nodes)
			if counts[kind] == nil {
				counts[kind] = &count{}
			}
			start := time.Now()
			err := made.run(t, cat, pool, p.graph)
			t.Logf("%.1f s", time.Since(start).Seconds())
			for _, c := range []*count{counts["all"], counts[kind]} {
				c.templates, c.use = c.templates+1, c.use+p.usage
				if err == nil {
					c.ran, c.useRan = c.ran+1, c.useRan+p.usage
				}
			}
			waits := waiting[p.name]
			switch {
			case errors.Is(err, errNoStandIn) || err != nil && waits != "" && strings.Contains(err.Error(), waits):
				t.Logf("%6d does not run: %v", p.usage, err)
			case err != nil:
				t.Errorf("%6d: %v", p.usage, err)
			case waits != "":
				t.Errorf("it runs: strike it from the list")
			}
		})
	}
	t.Log("| family | templates | run | use | use that runs |")
	for _, kind := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Compare(counts[b].use, counts[a].use)
	}) {
		c := counts[kind]
		t.Logf("| %s | %d | %d | %d | %d, %.1f %% |", kind, c.templates, c.ran, c.use, c.useRan,
			100*float64(c.useRan)/float64(max(c.use, 1)))
	}
	all := counts["all"]
	t.Logf("of the use of all local templates %.1f %% runs", 100*float64(all.useRan)/float64(max(total, 1)))
}

// familyOf names the family of the first network of a template by its file.
func familyOf(nodes []*pyjson.Object) string {
	for _, n := range nodes {
		values, _ := n.At("widgets_values").([]any)
		if class := n.At("type"); len(values) > 0 && (class == "UNETLoader" || class == "CheckpointLoaderSimple") {
			name, _ := values[0].(string)
			for _, f := range []struct{ start, family string }{
				{"qwen_image_2.1", "Qwen-Image-2.1"},
				{"qwen", "Qwen-Image"},
				{"z_image", "Z-Image"},
				{"krea2", "Krea 2"},
				{"flux3", "FLUX.3 klein"},
				{"flux2", "FLUX.2"},
				{"flux-2", "FLUX.2"},
				{"flux", "FLUX"},
				{"wan", "Wan"},
				{"minimax", "MiniMax-H3"},
				{"fast", "MiniMax-H3"},
				{"ltx-2.5", "LTX-2.5"},
				{"ltx", "LTX-2"},
				{"sd_xl", "SDXL"},
			} {
				if strings.HasPrefix(strings.ToLower(filepath.Base(name)), f.start) {
					return f.family
				}
			}
		}
	}
	return "other"
}

// run runs a template once and looks at what it leaves.
func (f *templateFiles) run(t *testing.T, cat *graph.Catalogue, pool *parallel.Pool, g *pyjson.Object) error {
	t.Helper()
	api, failure := editor.Convert(g, cat.WithoutFiles)
	if failure != nil {
		return failure
	}
	smallSizes(cat, api)
	for _, id := range api.Keys() { // Qwen3-VL 8B is known by its width
		if in := api.In(id).In("inputs"); strings.HasPrefix(in.Text("clip_name"), "qwen3vl_8b") {
			in.Set("type", "krea2")
		}
	}
	w, failure := graph.ParseWorkflow(api)
	if failure != nil {
		return failure
	}
	var lacking error
	var network, encoder string
	var loras []string
	roots := filledFor(t, cat, w, func(id, kind, path string) {
		if files.IsInput(kind) {
			f.input(t, path)
			return
		}
		as, _ := w.Input(id, "type")
		text, _ := as.(string)
		switch kind {
		case files.KindLora:
			loras = append(loras, path)
			return
		case files.KindDiffusion, files.KindCheckpoint:
			network = path
		case files.KindText:
			encoder = path
		}
		if err := f.put(t, kind+"/"+text+"/"+filepath.Base(path), path); err != nil {
			scratch.Touch(t, path)
			lacking = err
		}
	})
	for _, path := range loras {
		if strings.HasPrefix(filepath.Base(path), "gemma") {
			writeLoRA(t, path, encoder, "text_encoders.gemma3_12b.transformer.", nil)
		} else {
			writeLoRA(t, path, network, "diffusion_model.", nil)
		}
	}
	if familyOf(activeNodes(g)) == "FLUX" {
		roots.Models = append(roots.Models, f.demo)
	} else {
		roots.Models = append(roots.Models, f.tokenizers)
	}
	runner, err := graph.NewRunner(graph.Config{Engine: pool, Roots: roots, Catalogue: cat})
	check(t, err)
	defer runner.Close()
	if text := complaint(cat, roots, w.Clone()); text != "" {
		return fmt.Errorf("at small sizes: %s", text)
	}
	result, err := runner.Run(context.Background(), graph.Job{ID: "t", Workflow: w}, nil)
	switch {
	case err != nil && lacking != nil:
		return fmt.Errorf("%w; %w", err, lacking)
	case err != nil:
		return err
	case len(result.Outputs) == 0:
		return fmt.Errorf("it leaves no file")
	}
	for _, warning := range result.Warnings {
		t.Logf("warning: %s", warning)
	}
	for _, o := range result.Outputs {
		if o.Ext != ".png" || o.Type != "output" { // a preview may show edges of nothing
			continue
		}
		im, err := png.Decode(bytes.NewReader(o.Data))
		check(t, err)
		first, flat := im.At(im.Bounds().Min.X, im.Bounds().Min.Y), true
		for y := im.Bounds().Min.Y; y < im.Bounds().Max.Y; y++ {
			for x := im.Bounds().Min.X; x < im.Bounds().Max.X; x++ {
				flat = flat && im.At(x, y) == first
			}
		}
		if flat {
			return fmt.Errorf("a picture of node %s is all %v", o.Node, first)
		}
	}
	return nil
}
