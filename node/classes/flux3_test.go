package classes

import (
	"path/filepath"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/tiny"
)

// writeFLUX3 writes small models of FLUX.3, and an encoder which looks like one with a vision tower.
func writeFLUX3(t *testing.T, root string) {
	t.Helper()
	set, meta, err := tiny.Checkpoint("flux3")
	check(t, err)
	writeModel(t, filepath.Join(root, "diffusion_models/flux3.safetensors"), set, meta["config"], strings.Clone)
	writeGoldenModel(t, "f3-qwen3vl-a", "", filepath.Join(root, "text_encoders/qwen3vl_4b_flux3.safetensors"),
		safetensors.Tensor{
			Name: "visual.deepstack_merger_list.0.norm.weight", DType: engine.F32, Shape: []int{1},
			Data: datafile.Of(make([]byte, 4)),
		})
}

// TestFLUX3FromFilesToPicture edits a picture with the distilled model and draws one without references, with guidance,
// so that prompts count.
func TestFLUX3FromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux3.safetensors", "weight_dtype": "default"}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen3vl_4b_flux3.safetensors", "type": "flux3",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "flux2-vae.safetensors"}},
		"i": {"class_type": "EmptyImage", "inputs": {"width": 48, "height": 80, "batch_size": 1, "color": 3368601}},
		"e": {"class_type": "VAEEncode", "inputs": {"pixels": ["i", 0], "vae": ["v", 0]}},
		"t": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"p": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["t", 0], "latent": ["e", 0]}},
		"n": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["t", 0]}},
		"l": {"class_type": "EmptyFlux2LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 4, "cfg": 8.0, "sampler_name": "euler",
			"scheduler": "simple", "denoise": 1.0, "model": ["m", 0], "positive": ["p", 0], "negative": ["n", 0],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "f"}}}`)
}
