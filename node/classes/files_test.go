package classes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/tests/race"
	"patchbay/tests/scratch"
)

// demoFile opens a part of the demo checkpoint.
func demoFile(t *testing.T, name string) *safetensors.File {
	t.Helper()
	f, err := safetensors.Open(filepath.Join("..", "..", "examples", "demo", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// toGGUF writes a part of the demo as a GGUF file with its config. rename may be nil.
func toGGUF(t *testing.T, from *safetensors.File, to string, words map[string]any, kind gguf.Type,
	rename func(string) string,
) {
	t.Helper()
	words["config"] = from.Metadata()["config"]
	var tensors []ggufwrite.Tensor
	for _, name := range from.Names() {
		e, _ := from.Entry(name)
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		as := gguf.F32
		if block, _ := kind.Block(); len(e.Shape) == 2 && len(v)%block == 0 {
			as = kind
		}
		if rename != nil {
			name = rename(name)
		}
		tensors = append(tensors, ggufwrite.Tensor{Name: name, Type: as, Shape: e.Shape, Data: ggufwrite.Quantise(as, v)})
	}
	scratch.Write(t, to, ggufwrite.File(words, tensors))
}

// demoVocabulary returns the demo's T5 vocabulary in the form that llama.cpp's converter writes.
func demoVocabulary(t *testing.T) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "examples", "demo", "tokenizers", "demo_t5.tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Model struct{ Vocab [][]any } }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var pieces []string
	var scores []float32
	var kinds []int32
	for i, v := range file.Model.Vocab {
		pieces, scores = append(pieces, v[0].(string)), append(scores, float32(v[1].(float64)))
		kinds = append(kinds, map[int]int32{0: 3, 1: 3, 2: 2}[i])
		if i > 2 {
			kinds[i] = 1
		}
	}
	return map[string]any{
		"general.architecture": "t5encoder", "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": pieces,
		"tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": kinds,
		"tokenizer.ggml.add_space_prefix": true, "tokenizer.ggml.remove_extra_whitespaces": true,
	}
}

// llamaT5 maps Hugging Face's names of T5 to llama.cpp's.
func llamaT5() func(string) string {
	r := strings.NewReplacer("shared.weight", "token_embd.weight", "encoder.final_layer_norm", "enc.output_norm",
		"encoder.block.", "enc.blk.",
		"layer.0.SelfAttention.relative_attention_bias", "attn_rel_b", "layer.0.SelfAttention.", "attn_",
		"layer.0.layer_norm", "attn_norm", "layer.1.layer_norm", "ffn_norm",
		"layer.1.DenseReluDense.wi_0", "ffn_gate", "layer.1.DenseReluDense.wi_1", "ffn_up",
		"layer.1.DenseReluDense.wo", "ffn_down")
	return r.Replace
}

// toFolder writes a part of the demo as a diffusers folder: two shards, index, config.json.
func toFolder(t *testing.T, from *safetensors.File, dir, stem string) {
	t.Helper()
	var shards [2][]safetensors.Tensor
	listed := map[string]string{}
	file := func(i int) string { return stem + []string{"-00001-of-00002", "-00002-of-00002"}[i] + ".safetensors" }
	for i, name := range from.Names() {
		e, _ := from.Entry(name)
		shards[i%2], listed[name] = append(shards[i%2], e), file(i%2)
	}
	for i, entries := range shards {
		var b bytes.Buffer
		if err := safetensors.Write(&b, nil, entries); err != nil {
			t.Fatal(err)
		}
		scratch.Write(t, filepath.Join(dir, file(i)), b.Bytes())
	}
	index, err := json.Marshal(map[string]any{"weight_map": listed})
	if err != nil {
		t.Fatal(err)
	}
	scratch.Write(t, filepath.Join(dir, stem+".safetensors.index.json"), index)
	scratch.Write(t, filepath.Join(dir, "config.json"), []byte(from.Metadata()["config"]))
}

// demoPipeline writes the whole demo as a diffusers pipeline.
func demoPipeline(t *testing.T, dir string) {
	t.Helper()
	toFolder(t, demoFile(t, "diffusion_models/demo_flux.safetensors"), filepath.Join(dir, "transformer"),
		"diffusion_pytorch_model")
	toFolder(t, demoFile(t, "text_encoders/demo_clip.safetensors"), filepath.Join(dir, "text_encoder"), "model")
	toFolder(t, demoFile(t, "text_encoders/demo_t5.safetensors"), filepath.Join(dir, "text_encoder_2"), "model")
	toFolder(t, demoFile(t, "vae/demo_ae.safetensors"), filepath.Join(dir, "vae"), "diffusion_pytorch_model")
	copyFile(t, "tokenizers/demo_clip.tokenizer.json", filepath.Join(dir, "tokenizer/tokenizer.json"))
	copyFile(t, "tokenizers/demo_t5.tokenizer.json", filepath.Join(dir, "tokenizer_2/tokenizer.json"))
}

// drawOnce runs the demo workflow for one step, after replacing text in it, and returns the image file.
func drawOnce(t *testing.T, roots files.Roots, replace ...string) []byte {
	t.Helper()
	w := demoWorkflow(t)
	for name, v := range map[string]any{"steps": 1, "cfg": 1.0} {
		if err := w.SetInput("3", name, v); err != nil {
			t.Fatal(err)
		}
	}
	for name := range map[string]bool{"width": true, "height": true} {
		if err := w.SetInput("5", name, 64); err != nil {
			t.Fatal(err)
		}
	}
	text := string(w.JSON())
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("the workflow has no %s:\n%s", replace[i], text)
		}
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	runner, err := graph.NewRunner(graph.Config{Engine: refEngine(t), Roots: roots, Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close()
	result, err := runner.Run(context.Background(), graph.Job{Workflow: graphOf(t, text), NoMetadata: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return result.Outputs[0].Data
}

// TestOtherFormsDrawTheSamePicture checks that the demo gives the same image as from safetensors files when it is
// loaded from GGUF files (bf16, so that nothing is lost, with the names and the vocabulary of llama.cpp), through the
// loaders of ComfyUI-GGUF and the stock ones, and from a sharded diffusers folder.
func TestOtherFormsDrawTheSamePicture(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	want := drawOnce(t, demoRoots())
	root := t.TempDir()
	toGGUF(t, demoFile(t, "diffusion_models/demo_flux.safetensors"), filepath.Join(root, "unet/demo.gguf"),
		map[string]any{"general.architecture": "flux"}, gguf.BF16, nil)
	toGGUF(t, demoFile(t, "text_encoders/demo_t5.safetensors"), filepath.Join(root, "clip/demo_t5.gguf"),
		demoVocabulary(t), gguf.BF16, llamaT5())
	copyFile(t, "text_encoders/demo_clip.safetensors", filepath.Join(root, "clip/demo_clip.safetensors"))
	copyFile(t, "tokenizers/demo_clip.tokenizer.json", filepath.Join(root, "tokenizers/demo_clip.tokenizer.json"))
	copyFile(t, "vae/demo_ae.safetensors", filepath.Join(root, "vae/demo_ae.safetensors"))
	demoPipeline(t, filepath.Join(root, "diffusers/Demo"))
	for name, replace := range map[string][]string{
		"stock loaders of GGUF": {`"demo_flux.safetensors"`, `"demo.gguf"`, `"demo_t5.safetensors"`, `"demo_t5.gguf"`},
		"ComfyUI-GGUF": {
			`"UNETLoader"`, `"UnetLoaderGGUF"`, `"demo_flux.safetensors"`, `"demo.gguf"`, `"DualCLIPLoader"`,
			`"DualCLIPLoaderGGUF"`, `"demo_t5.safetensors"`, `"demo_t5.gguf"`,
		},
		"diffusers folder": {
			`"demo_flux.safetensors"`, `"Demo"`, `"demo_clip.safetensors"`, `"Demo/text_encoder"`, `"demo_t5.safetensors"`,
			`"Demo/text_encoder_2"`, `"demo_ae.safetensors"`, `"Demo/vae"`,
		},
	} {
		if got := drawOnce(t, files.Roots{Models: []string{root}}, replace...); !bytes.Equal(got, want) {
			t.Errorf("%s: another picture", name)
		}
	}
}

func TestQuantisedLoaders(t *testing.T) {
	root := t.TempDir()
	flux := demoFile(t, "diffusion_models/demo_flux.safetensors")
	toGGUF(t, flux, filepath.Join(root, "unet/q8.gguf"), map[string]any{}, gguf.Q8v0, nil)
	scratch.Write(t, filepath.Join(root, "unet/cut.gguf"), []byte("GGUF\x03\x00"))
	scratch.Write(t, filepath.Join(root, "unet/iq.gguf"),
		ggufwrite.File(nil, []ggufwrite.Tensor{{Name: "a", Type: 20, Shape: []int{32}, Data: make([]byte, 18)}}))
	runner, err := graph.NewRunner(graph.Config{Roots: files.Roots{Models: []string{root}}, Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	load := func(class string, inputs map[string]any) *value.Model {
		t.Helper()
		handle, _ := exec(t, runner, class, inputs).(graph.Handle)
		v, ok := runner.Value(handle.ID)
		if !ok {
			t.Fatalf("no handle %v", handle)
		}
		return v.(*value.Model)
	}
	advanced := map[string]any{
		"unet_name": "q8.gguf", "dequant_dtype": "float32", "patch_dtype": "default",
		"patch_on_device": false,
	}
	narrow, wide := load("UnetLoaderGGUF", map[string]any{"unet_name": "q8.gguf"}),
		load("UnetLoaderGGUFAdvanced", advanced)
	// The plan must count what is resident: blocks as in the file, or the widened weights.
	packed, err := os.Stat(filepath.Join(root, "unet/q8.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	a, b := narrow.Request(), wide.Request()
	if n := a.WideBytes; n < packed.Size()*97/100 || n > packed.Size()*110/100 || !a.Blocks || b.Blocks ||
		b.WideBytes < 2*flux.Size()*95/100 {
		t.Errorf("on devices as blocks %d bytes, as f32 %d, of %d and %d", n, b.WideBytes, packed.Size(), 2*flux.Size())
	}
	if n := narrow.Request().WeightBytes; n < packed.Size()*97/100 || n > packed.Size()*103/100 ||
		wide.Request().WeightBytes < 2*flux.Size()*95/100 || narrow.Key == wide.Key {
		t.Errorf("as blocks %d bytes, as f32 %d; the file has %d, one in bf16 %d; keys %s and %s must differ",
			n, wide.Request().WeightBytes, packed.Size(), flux.Size(), narrow.Key, wide.Key)
	}
	half := map[string]any{
		"unet_name": "q8.gguf", "dequant_dtype": "float16", "patch_dtype": "default",
		"patch_on_device": false,
	}
	for name, c := range map[string]struct {
		class       string
		inputs      map[string]any
		field, says string
	}{
		"cut":        {"UnetLoaderGGUF", map[string]any{"unet_name": "cut.gguf"}, "unet_name", "truncated"},
		"iq":         {"UnetLoaderGGUF", map[string]any{"unet_name": "iq.gguf"}, "unet_name", "IQ4_NL"},
		"float16":    {"UnetLoaderGGUFAdvanced", half, "dequant_dtype", "float32"},
		"not listed": {"UnetLoaderGGUF", map[string]any{"unet_name": "../q8.gguf"}, "unet_name", "q8.gguf"},
	} {
		_, err := runner.Exec(context.Background(), graph.ExecRequest{Class: c.class, Inputs: c.inputs}, nil)
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != c.field || !strings.Contains(f.Error(), c.says) {
			t.Errorf("%s: got %v, want field %s and the text %q", name, err, c.field, c.says)
		}
	}
}

func TestListsOfOtherForms(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	demoPipeline(t, filepath.Join(base, "diffusion_models/sub/Demo"))
	toFolder(t, demoFile(t, "diffusion_models/demo_flux.safetensors"), filepath.Join(base, "unet/bare"),
		"diffusion_pytorch_model")
	toFolder(t, demoFile(t, "text_encoders/demo_t5.safetensors"), filepath.Join(base, "clip/t5"), "model")
	for _, f := range []string{
		"unet/q.gguf", "vae/q.gguf", "loras/q.gguf", "clip/q.GGUF",
		"unet/a-00001-of-00002.safetensors",
	} {
		scratch.Touch(t, filepath.Join(base, f))
	}
	scratch.Touch(t, filepath.Join(outside, "x.safetensors"))
	scratch.Write(t, filepath.Join(base, "unet/far/config.json"), []byte("{}"))
	if err := os.Symlink(filepath.Join(outside, "x.safetensors"),
		filepath.Join(base, "unet/far/diffusion_pytorch_model.safetensors")); err != nil {
		t.Fatal(err)
	}
	r := files.Roots{Models: []string{base}, StrictLinks: true}
	for kind, want := range map[string][]string{
		files.KindDiffusion: {"a-00001-of-00002.safetensors", "bare", "far", "q.gguf", "sub/Demo"},
		files.KindGGUF:      {"q.gguf"}, files.KindLora: {}, files.KindVAE: {"sub/Demo/vae"},
		files.KindText: {"q.GGUF", "sub/Demo/text_encoder", "sub/Demo/text_encoder_2", "t5/model.safetensors.index.json"},
	} {
		if got := r.List(kind); !slices.Equal(got, want) {
			t.Errorf("%s lists %v, want %v", kind, got, want)
		}
		for _, name := range want {
			path, err := r.Resolve(kind, "f", name)
			if name == "far" {
				if f := fault.From(err); err == nil || f.Code != fault.FileOutsideRoot {
					t.Errorf("a folder whose file is a link to a place outside is %q, %v", path, err)
				}
				continue
			}
			if err != nil || !strings.HasPrefix(path, base) {
				t.Errorf("%s %s is %q, %v", kind, name, path, err)
			}
		}
	}
	for _, bad := range []string{
		"sub", "sub/Demo/vae", "../unet/bare", "sub/Demo/transformer/../..",
		"sub/Demo/tokenizer",
	} {
		if path, err := r.Resolve(files.KindDiffusion, "f", bad); err == nil {
			t.Errorf("%q was resolved to %s", bad, path)
		}
	}
}
