package classes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// writeGoldenModel writes a golden model to a file with its names prefixed, along with more tensors.
func writeGoldenModel(t *testing.T, name, prefix, path string, more ...safetensors.Tensor) {
	t.Helper()
	set, config, err := goldenweights.Set(name)
	check(t, err)
	writeModel(t, path, set, string(config), func(n string) string { return prefix + n }, more...)
}

// writeModel writes tensors to a file under other names.
func writeModel(t *testing.T, path string, set *weights.Set, config string, as func(string) string,
	more ...safetensors.Tensor,
) {
	t.Helper()
	list := more
	for _, n := range set.Names() {
		s, _ := set.Get(n)
		list = append(list, safetensors.Tensor{Name: as(n), DType: s.DType, Shape: s.Shape, Data: datafile.Of(s.Data)})
	}
	writeTensors(t, path, map[string]string{"config": config}, list)
}

// writeTensors writes a file of tensors and creates its folders.
func writeTensors(t *testing.T, path string, meta map[string]string, list []safetensors.Tensor) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	f, err := os.Create(path)
	check(t, err)
	check(t, safetensors.Write(f, meta, list))
	check(t, f.Close())
}

// writeKrea2 writes a small Krea 2 without a prefix, and an encoder with Hugging Face's names for vision models.
func writeKrea2(t *testing.T, root string) {
	t.Helper()
	set, meta, err := tiny.Checkpoint("krea2")
	check(t, err)
	writeModel(t, filepath.Join(root, "diffusion_models/krea2.safetensors"), set, meta["config"], strings.Clone)
	set, config, err := goldenweights.Set("krea2-qwen3vl-a")
	check(t, err)
	eyes := strings.TrimSuffix(string(config), "}") + `, "vision": {"deepstack_visual_indexes": [0, 2, 3]}}`
	writeModel(t, filepath.Join(root, "text_encoders/qwen3vl_4b.safetensors"), set, eyes, strings.NewReplacer(
		"model.", "model.language_model.", "visual.", "model.visual.").Replace)
}

// chat is the folder with the files of chatRoots. Tests share it, because writing it takes longer than sampling with
// it, and must not change it.
var chat struct {
	sync.Once
	dir string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if chat.dir != "" {
		_ = os.RemoveAll(chat.dir)
	}
	os.Exit(code)
}

// chatRoots returns roots with small models of the families that use language models, such as Z-Image, Qwen-Image,
// FLUX.2 and Krea 2, and with the vocabulary in a folder.
func chatRoots(t *testing.T, vocabulary string) files.Roots {
	t.Helper()
	chat.Do(func() {
		var err error
		chat.dir, err = os.MkdirTemp("", "chat") //nolint:usetesting // all tests read it
		check(t, err)
		writeChat(t, chat.dir)
	})
	found, err := filepath.Glob(filepath.Join(vocabulary, "*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s holds no vocabulary: %v", vocabulary, err)
	}
	vocabularies := t.TempDir()
	for _, path := range found {
		data, err := os.ReadFile(path)
		check(t, err)
		scratch.Write(t, filepath.Join(vocabularies, "tokenizers/qwen3", filepath.Base(path)), data)
		scratch.Write(t, filepath.Join(vocabularies, "tokenizers/qwen35", filepath.Base(path)), data)
	}
	return files.Roots{Models: []string{chat.dir, vocabularies}}
}

func writeChat(t *testing.T, root string) {
	t.Helper()
	writeGoldenModel(t, "zimage-a", "model.diffusion_model.", filepath.Join(root, "diffusion_models/z_image.safetensors"))
	writeGoldenModel(t, "qwen3-a", "", filepath.Join(root, "text_encoders/qwen_3.safetensors"))
	pieces, err := os.ReadFile(filepath.Join("../../models/tokenizer/testdata/tiny_bpe.model"))
	check(t, err)
	vocabularyInside := safetensors.Tensor{
		Name: "spiece_model", DType: engine.U8, Shape: []int{len(pieces)}, Data: datafile.Of(pieces),
	}
	writeGoldenModel(t, "lumina2-a", "", filepath.Join(root, "diffusion_models/lumina2.safetensors"))
	writeGoldenModel(t, "gemma2-a", "", filepath.Join(root, "text_encoders/gemma_2_2b.safetensors"), vocabularyInside)
	writeGoldenModel(t, "aura-a", "model.", filepath.Join(root, "diffusion_models/aura_flow.safetensors"))
	writeGoldenModel(t, "pile-t5-a", "", filepath.Join(root, "text_encoders/pile_t5xl.safetensors"))
	scratch.Write(t, filepath.Join(root, "tokenizers/pile_t5xl/tokenizer.model"), pieces)
	writeGoldenModel(t, "vae-kl", "", filepath.Join(root, "vae/kl.safetensors"))
	writeGoldenModel(t, "chroma-a", "", filepath.Join(root, "diffusion_models/chroma.safetensors"))
	copyFile(t, "text_encoders/demo_t5.safetensors", filepath.Join(root, "text_encoders/t5.safetensors"))
	copyFile(t, "tokenizers/demo_t5.tokenizer.json", filepath.Join(root, "tokenizers/t5.tokenizer.json"))
	copyFile(t, "vae/demo_ae.safetensors", filepath.Join(root, "vae/ae.safetensors"))
	writeGoldenModel(t, "qwen-a", "model.diffusion_model.", filepath.Join(root, "diffusion_models/qwen_image.safetensors"))
	writeGoldenModel(t, "qwen25vl-a", "", filepath.Join(root, "text_encoders/qwen_2.5_vl_7b.safetensors"))
	writeGoldenModel(t, "wanvae-a", "", filepath.Join(root, "vae/qwen_image_vae.safetensors"))
	writeGoldenModel(t, "qwen-c", "", filepath.Join(root, "diffusion_models/qwen_image_layered.safetensors"))
	writeGoldenModel(t, "wanvae-b", "", filepath.Join(root, "vae/qwen_image_layered_vae.safetensors"))
	writeGoldenModel(t, "flux2-b", "", filepath.Join(root, "diffusion_models/klein.safetensors"))
	writeGoldenModel(t, "klein-qwen3-a", "", filepath.Join(root, "text_encoders/qwen_3_4b.safetensors"))
	writeGoldenModel(t, "flux2vae-a", "", filepath.Join(root, "vae/flux2-vae.safetensors"))
	writeKrea2(t, root)
	writeGoldenModel(t, "qwen35-b", "", filepath.Join(root, "text_encoders/qwen3.5.safetensors"))
	set, meta, err := tiny.Checkpoint("qwenimage21") // which reads states as wide as those for Krea 2's small encoder
	check(t, err)
	writeModel(t, filepath.Join(root, "diffusion_models/qwen_image_2.1.safetensors"), set, meta["config"], strings.Clone)
	writeGoldenModel(t, "q21vae-a", "", filepath.Join(root, "vae/qwen_image_2.1_vae.safetensors"))
	writeFLUX3(t, root)
	var words map[string]json.RawMessage
	var tekken struct{ JSON string }
	check(t, golden.JSON("modern/tokens.json", &words))
	check(t, json.Unmarshal(words["tekken_synthetic"], &tekken))
	writeGoldenModel(t, "flux2-a", "", filepath.Join(root, "diffusion_models/flux2_dev.safetensors"))
	writeGoldenModel(t, "mistral3-a", "", filepath.Join(root, "text_encoders/mistral_3_small.safetensors"),
		safetensors.Tensor{
			Name: "tekken_model", DType: engine.U8, Shape: []int{len(tekken.JSON)}, Data: datafile.Of([]byte(tekken.JSON)),
		})
}

// zImageFlow is the public turbo workflow of Z-Image, with a prompt.
const zImageFlow = `{
	"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "z_image.safetensors", "weight_dtype": "default"}},
	"a": {"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["m", 0], "shift": 3.0}},
	"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen_3.safetensors", "type": "lumina2",
		"device": "default"}},
	"v": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
	"l": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
	"p": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
	"n": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["p", 0]}},
	"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 4, "cfg": 1.0, "sampler_name": "res_multistep",
		"scheduler": "simple", "denoise": 1.0, "model": ["a", 0], "positive": ["p", 0], "negative": ["n", 0],
		"latent_image": ["l", 0]}},
	"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
	"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "z"}}}`

// TestZImageFromFilesToPicture runs the public turbo workflow from files to PNG. Exact plans may differ from one rank
// by at most one level, and another prompt must differ by more.
func TestZImageFromFilesToPicture(t *testing.T) {
	planned(t, zImageFlow)
}

// TestChromaFromFilesToPicture runs the public workflow with a guidance that is not the default.
func TestChromaFromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "chroma.safetensors", "weight_dtype": "default"}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "t5.safetensors", "type": "chroma", "device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
		"l": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"t": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"p": {"class_type": "FluxGuidance", "inputs": {"conditioning": ["t", 0], "guidance": 1.5}},
		"n": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurred", "clip": ["c", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 3, "cfg": 4.0, "sampler_name": "euler",
			"scheduler": "beta", "denoise": 1.0, "model": ["m", 0], "positive": ["p", 0], "negative": ["n", 0],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "c"}}}`)
}

// TestLumina2FromFilesToPicture runs the public workflow with a vocabulary inside the encoder's file.
func TestLumina2FromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "lumina2.safetensors", "weight_dtype": "default"}},
		"a": {"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["m", 0], "shift": 6.0}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "gemma_2_2b.safetensors", "type": "lumina2",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
		"l": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"p": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"n": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurred", "clip": ["c", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 3, "cfg": 4.0, "sampler_name": "res_multistep",
			"scheduler": "simple", "denoise": 1.0, "model": ["a", 0], "positive": ["p", 0], "negative": ["n", 0],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "c"}}}`)
}

// TestAuraFlowFromFilesToPicture runs the public workflow, in which ComfyUI has no type for the encoder.
func TestAuraFlowFromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "aura_flow.safetensors", "weight_dtype": "default"}},
		"a": {"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["m", 0], "shift": 1.73}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "pile_t5xl.safetensors", "type": "stable_diffusion",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "kl.safetensors"}},
		"l": {"class_type": "EmptyLatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"p": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"n": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurred", "clip": ["c", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 3, "cfg": 3.5, "sampler_name": "euler",
			"scheduler": "normal", "denoise": 1.0, "model": ["a", 0], "positive": ["p", 0], "negative": ["n", 0],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "c"}}}`)
}

// TestQwenImageFromFilesToPicture runs the public workflow in the same way.
func TestQwenImageFromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "qwen_image.safetensors", "weight_dtype": "default"}},
		"a": {"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["m", 0], "shift": 3.1}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen_2.5_vl_7b.safetensors", "type": "qwen_image",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "qwen_image_vae.safetensors"}},
		"l": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"p": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"n": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurred", "clip": ["c", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 4, "cfg": 8.0, "sampler_name": "euler",
			"scheduler": "simple", "denoise": 1.0, "model": ["a", 0], "positive": ["p", 0], "negative": ["n", 0],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "q"}}}`)
}

// TestQwenImageEditFromFilesToPicture edits an image, which both the encoder and the network get as a reference.
func TestQwenImageEditFromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "qwen_image.safetensors", "weight_dtype": "default"}},
		"a": {"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["m", 0], "shift": 3.0}},
		"b": {"class_type": "CFGNorm", "inputs": {"model": ["a", 0], "strength": 1.0}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen_2.5_vl_7b.safetensors", "type": "qwen_image",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "qwen_image_vae.safetensors"}},
		"i": {"class_type": "EmptyImage", "inputs": {"width": 48, "height": 80, "batch_size": 1, "color": 3368601}},
		"l": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"e": {"class_type": "VAEEncode", "inputs": {"pixels": ["i", 0], "vae": ["v", 0]}},
		"t": {"class_type": "TextEncodeQwenImageEditPlus", "inputs": {"prompt": %q, "clip": ["c", 0], "image1": ["i", 0]}},
		"p": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["t", 0], "latent": ["e", 0]}},
		"n": {"class_type": "TextEncodeQwenImageEditPlus", "inputs": {"prompt": "", "clip": ["c", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 2, "cfg": 8.0, "sampler_name": "euler",
			"scheduler": "simple", "denoise": 1.0, "model": ["b", 0], "positive": ["p", 0], "negative": ["n", 0],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "e"}}}`)
}

// TestKrea2FromFilesToPicture runs the workflow of the official template, whose empty latent has 4 channels, with
// guidance, so that prompts count.
func TestKrea2FromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "krea2.safetensors", "weight_dtype": "default"}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen3vl_4b.safetensors", "type": "krea2",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "qwen_image_vae.safetensors"}},
		"l": {"class_type": "EmptyLatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"p": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"n": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["p", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 4, "cfg": 8.0, "sampler_name": "euler",
			"scheduler": "simple", "denoise": 1.0, "model": ["m", 0], "positive": ["p", 0], "negative": ["n", 0],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "k"}}}`)
}

// TestKrea2StyleFromFilesToPicture runs the template with a style image, which the encoder gets, and the network too
// because of the reference method, without which it would not.
func TestKrea2StyleFromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "krea2.safetensors", "weight_dtype": "default"}},
		"a": {"class_type": "ModelSamplingFlux", "inputs": {"model": ["m", 0], "max_shift": 1.15, "base_shift": 0.5,
			"width": 80, "height": 112}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen3vl_4b.safetensors", "type": "krea2",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "qwen_image_vae.safetensors"}},
		"i": {"class_type": "EmptyImage", "inputs": {"width": 48, "height": 80, "batch_size": 1, "color": 3368601}},
		"l": {"class_type": "EmptyLatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"e": {"class_type": "VAEEncode", "inputs": {"pixels": ["i", 0], "vae": ["v", 0]}},
		"t": {"class_type": "TextEncodeQwenImageEditPlus", "inputs": {"prompt": %q, "clip": ["c", 0], "image1": ["i", 0]}},
		"r": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["t", 0], "latent": ["e", 0]}},
		"p": {"class_type": "FluxKontextMultiReferenceLatentMethod", "inputs": {"conditioning": ["r", 0],
			"reference_latents_method": "index_timestep_zero"}},
		"n": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["p", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 2, "cfg": 8.0, "sampler_name": "euler",
			"scheduler": "simple", "denoise": 1.0, "model": ["a", 0], "positive": ["p", 0], "negative": ["n", 0],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "k"}}}`)
}

// TestFLUX2FromFilesToPicture runs klein's public workflow for editing, with a reference on both conditionings.
func TestFLUX2FromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "klein.safetensors", "weight_dtype": "default"}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen_3_4b.safetensors", "type": "flux2",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "flux2-vae.safetensors"}},
		"i": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 48, "batch_size": 1, "color": 3368601}},
		"e": {"class_type": "VAEEncode", "inputs": {"pixels": ["i", 0], "vae": ["v", 0]}},
		"t": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"z": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["t", 0]}},
		"p": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["t", 0], "latent": ["e", 0]}},
		"n": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["z", 0], "latent": ["e", 0]}},
		"g": {"class_type": "CFGGuider", "inputs": {"model": ["m", 0], "positive": ["p", 0], "negative": ["n", 0],
			"cfg": 3.0}},
		"l": {"class_type": "EmptyFlux2LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"r": {"class_type": "RandomNoise", "inputs": {"noise_seed": 7}},
		"k": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
		"x": {"class_type": "Flux2Scheduler", "inputs": {"steps": 2, "width": 80, "height": 112}},
		"s": {"class_type": "SamplerCustomAdvanced", "inputs": {"noise": ["r", 0], "guider": ["g", 0], "sampler": ["k", 0],
			"sigmas": ["x", 0], "latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "f"}}}`)
}

// TestFLUX2DevFromFilesToPicture runs dev's public workflow with a vocabulary inside the encoder's file.
func TestFLUX2DevFromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux2_dev.safetensors", "weight_dtype": "default"}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "mistral_3_small.safetensors", "type": "flux2",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "flux2-vae.safetensors"}},
		"t": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"p": {"class_type": "FluxGuidance", "inputs": {"conditioning": ["t", 0], "guidance": 4.0}},
		"g": {"class_type": "BasicGuider", "inputs": {"model": ["m", 0], "conditioning": ["p", 0]}},
		"l": {"class_type": "EmptyFlux2LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"r": {"class_type": "RandomNoise", "inputs": {"noise_seed": 7}},
		"k": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
		"x": {"class_type": "Flux2Scheduler", "inputs": {"steps": 2, "width": 80, "height": 112}},
		"s": {"class_type": "SamplerCustomAdvanced", "inputs": {"noise": ["r", 0], "guider": ["g", 0], "sampler": ["k", 0],
			"sigmas": ["x", 0], "latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "f"}}}`)
}

// TestPicturesAreScaled checks the sizes to which the editing nodes scale images for the encoder and for references.
func TestPicturesAreScaled(t *testing.T) {
	for _, c := range []struct{ y, x, high, wide int }{
		{56, 84, 56, 84},
		{1322, 793, 1316, 784},
		{42, 98, 56, 112},        // ties round to even multiples
		{20, 20, 56, 56},         // too few pixels
		{7000, 7000, 3584, 3584}, // too many
	} {
		if y, x := visionSides(c.y, c.x, 28); y != c.high || x != c.wide {
			t.Errorf("%d x %d is seen as %d x %d, want %d x %d", c.y, c.x, y, x, c.high, c.wide)
		}
	}
	im := &picture.Image{B: 2, Y: 80, X: 48, C: 4, Data: make([]float32, 2*80*48*4)}
	for i := range im.Data {
		im.Data[i] = []float32{0.25, 0.5, 0.75, 0}[i%4]
	}
	for unit, want := range map[int][2]int{1: {1322, 793}, 8: {1320, 792}} {
		got, err := ofArea(im, 1024, unit, "image")
		check(t, err)
		if got.B != 1 || got.C != 3 || got.Y != want[0] || got.X != want[1] ||
			!(math.Abs(float64(got.Data[4])-0.5) <= 1e-6) {
			t.Errorf("unit %d: %d pictures of %d x %d, %d channels, second value %g; want one of %v, 3, 0.5", unit, got.B, got.Y,
				got.X, got.C, got.Data[4], want)
		}
	}
}

// planned runs a workflow with a %q for the prompt and an output of 80 x 112 pixels, on one rank and on plans.
func planned(t *testing.T, workflow string) {
	t.Helper()
	roots := chatRoots(t, "../../models/tokenizer/testdata/tiny_qwen")
	runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Roots: roots, Catalogue: All()})
	check(t, err)
	defer runner.Close()
	encoded := false // in the last run
	draw := func(plan, prompt string) []byte {
		w := graphOf(t, fmt.Sprintf(workflow, prompt))
		result, err := runner.Run(context.Background(), graph.Job{ID: "z", Workflow: w, Plan: plan}, nil)
		if err != nil {
			t.Fatalf("%s: %v", plan, err)
		}
		encoded = !slices.Contains(result.Cached, "p")
		return result.Outputs[0].Data
	}
	levels := func(a, b []byte) (worst float64) {
		x, err := png.Decode(bytes.NewReader(a))
		check(t, err)
		y, err := png.Decode(bytes.NewReader(b))
		check(t, err)
		if x.Bounds() != y.Bounds() || x.Bounds().Dx() != 80 || x.Bounds().Dy() != 112 {
			t.Fatalf("pictures of %v and %v, want 80 x 112", x.Bounds(), y.Bounds())
		}
		for row := range 112 {
			for column := range 80 {
				p, q := rgb(x, column, row), rgb(y, column, row)
				for c := range p {
					worst = max(worst, math.Abs(p[c]-q[c]))
				}
			}
		}
		return worst
	}
	want := draw("", "a cat")
	if worst := levels(draw("", "a dog in the rain"), want); worst < 3 { // plans differ by at most one
		t.Errorf("another prompt changes a picture by %g levels", worst)
	}
	for _, plan := range []string{"ulysses=3", "ring=2", "tensor=3,form=scatter", "pipe=2,patches=2,warmup=99"} {
		if worst := levels(draw(plan, "a cat"), want); !(worst <= 1) {
			t.Errorf("%s differs from one rank by %g levels", plan, worst)
		}
		if cut := strings.HasPrefix(plan, "tensor"); encoded != cut { // sums over ranks have other bits
			t.Errorf("%s: the prompt was encoded: %v, want %v", plan, encoded, cut)
		}
	}
}

// TestLanguageModelInParts checks that plans with a tensor group, over which the encoder is cut, and plans without one
// give the same states up to rounding, each from a run of its own.
func TestLanguageModelInParts(t *testing.T) {
	ranks := 0 // in the last run
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, func(rank, all int) (engine.Ops, error) {
			ranks = max(ranks, all)
			return fastOps(rank, all)
		}),
		Roots: chatRoots(t, "../../models/tokenizer/testdata/tiny_qwen"), Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	clip := exec(t, runner, "CLIPLoader", map[string]any{"clip_name": "qwen_3.safetensors", "type": "lumina2"})
	var want []float32
	for _, c := range []struct {
		plan  string
		ranks int
	}{{"", 0}, {"ulysses=2", 0}, {"tensor=2", 2}, {"tensor=4", 2}} { // the encoder has two key heads
		ranks = 0
		out, err := runner.Exec(context.Background(), graph.ExecRequest{
			Class: "CLIPTextEncode", Inputs: map[string]any{"text": "a cat", "clip": clip}, Plan: c.plan,
		}, nil)
		check(t, err)
		got := values(t, out.Outputs[0].([]any)[0].([]any)[0])
		if want == nil {
			want = got
		}
		if rel := relative(got, want); !(rel <= 1e-5) || ranks != c.ranks {
			t.Errorf("%q: %d ranks encode, want %d; relative difference %.3g, bound 1e-5", c.plan, ranks, c.ranks, rel)
		}
	}
}

// TestLanguageModelThroughNodes compares the states of CLIPLoader and CLIPTextEncode, with the template and the public
// vocabulary, with ComfyUI's.
func TestLanguageModelThroughNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another vocabulary; TestZImageFromFilesToPicture goes from files to a picture")
	}
	dir := os.Getenv("PATCHBAY_TEST_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "tokenizers")
	}
	if _, err := os.Stat(filepath.Join(dir, "qwen2.5", "vocab.json")); err != nil {
		t.Skipf("NOT RUN: %v\nset PATCHBAY_TEST_TOKENIZERS to the folder that holds qwen2.5", err)
	}
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: chatRoots(t, filepath.Join(dir, "qwen2.5")), Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	inputs := map[string]struct{ file, kind, words string }{
		"qwen3-a/0":                   {"qwen_3", "lumina2", "a cat"},
		"qwen3-a/1":                   {"qwen_3", "stable_diffusion", ""}, // the loader's default; the file decides
		"krea2-qwen3vl-a/0":           {"qwen3vl_4b", "krea2", "a cat"},
		"krea2-qwen3vl-a/1":           {"qwen3vl_4b", "krea2", ""},
		"klein-qwen3-a/0":             {"qwen_3_4b", "flux2", "a cat"},
		"klein-qwen3-a/2":             {"qwen_3_4b", "flux2", ""},
		"mistral3-a/text/the_red_cat": {"mistral_3_small", "stable_diffusion", "the red cat"},
		"qwen25vl-a/0":                {"qwen_2.5_vl_7b", "qwen_image", "a cat"},
		"qwen25vl-a/1":                {"qwen_2.5_vl_7b", "stable_diffusion", ""},
		"qwen25vl-a/own-template": {"qwen_2.5_vl_7b", "qwen_image", "<|im_start|>system\nPaint.<|im_end|>\n" +
			"<|im_start|>user\na red cube<|im_end|>\n<|im_start|>assistant\n"},
	}
	var padded map[string]struct{ Text string }
	check(t, golden.JSON("flux3/text.json", &padded))
	for key, c := range padded {
		inputs[key] = struct{ file, kind, words string }{"qwen3vl_4b_flux3", "flux3", c.Text}
	}
	for key, in := range inputs {
		clip := exec(t, runner, "CLIPLoader", map[string]any{"clip_name": in.file + ".safetensors", "type": in.kind})
		c := exec(t, runner, "CLIPTextEncode", map[string]any{"text": in.words, "clip": clip})
		folder := "modern"
		if in.kind == "flux3" {
			folder = in.kind
		}
		got, want := values(t, c.([]any)[0].([]any)[0]), tensorOf(t, folder+"/text.safetensors", key+"#cond")
		if rel := relative(got, want); !(rel <= 2e-5) {
			t.Errorf("%s: relative error %.3g, bound 2e-5", key, rel)
		}
	}
	var written struct {
		Texts []struct {
			Prompt, Text   string
			Thinking, Bare bool
		}
	}
	check(t, golden.JSON("modern33/generate.json", &written))
	clip := exec(t, runner, "CLIPLoader", map[string]any{"clip_name": "qwen3vl_4b.safetensors", "type": "krea2"})
	for _, w := range written.Texts {
		in := map[string]any{
			"clip": clip, "prompt": w.Prompt, "max_length": 8, "sampling_mode": "off", "thinking": w.Thinking,
			"use_default_template": !w.Bare,
		}
		if got := exec(t, runner, "TextGenerate", in); got != strings.TrimSpace(w.Text) {
			t.Errorf("%q, thinking %v: the encoder writes %q, want %q", w.Prompt, w.Thinking, got, w.Text)
		}
	}
	_, err = runner.Exec(t.Context(), graph.ExecRequest{Class: "TextGenerate", Inputs: map[string]any{
		"clip":   exec(t, runner, "CLIPLoader", map[string]any{"clip_name": "qwen_3.safetensors", "type": "lumina2"}),
		"prompt": "", "max_length": 8, "sampling_mode": "off",
	}}, nil)
	if refused := new(fault.Error); !errors.As(err, &refused) || refused.Code != fault.WrongFamily {
		t.Errorf("an encoder that only reads: got %v", err)
	}
}
