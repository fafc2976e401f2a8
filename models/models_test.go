package models_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/sampling"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

func TestCatalogue(t *testing.T) {
	discrete := family.Sampling{
		Line: family.DiscreteLine, Prediction: sampling.V, Betas: sampling.ScaledLinear,
		BetaStart: 0.00085, BetaEnd: 0.018,
	}
	older := discrete
	older.BetaEnd = 0.03
	pixart := family.Sampling{
		Line: family.DiscreteLine, Prediction: sampling.Eps, Betas: sampling.Linear,
		BetaStart: 0.0001, BetaEnd: 0.02,
	}
	for _, c := range []struct {
		name, variant, family string
		scale, shift          float32
		sampling              family.Sampling
		blocks, channels, out int
	}{
		{"flux-a", "flux", "flux", 0.3611, 0.1159, family.Sampling{Line: family.MuLine, Shift: 1.15}, 4, 16, 16},
		{
			"flux-b", "flux", "flux", 0.3611, 0.1159,
			family.Sampling{Line: family.FlowLine, Shift: 1, Multiplier: 1},
			4, 16, 16,
		},
		{
			"sd3-c", "sd3", "sd3", 1.5305, 0.0609,
			family.Sampling{Line: family.FlowLine, Shift: 3, Multiplier: 1000},
			3, 16, 16,
		},
		{"pixart-a", "pixart_alpha", "pixart", 0.18215, 0, pixart, 2, 4, 8},
		{"pixart-b", "pixart_sigma", "pixart", 0.13025, 0, pixart, 2, 4, 8},
		{"hydit-a", "hunyuandit", "hunyuandit", 0.13025, 0, discrete, 6, 4, 8},
		{"hydit-b", "hunyuandit", "hunyuandit", 0.13025, 0, older, 4, 4, 8},
	} {
		d, err := tiny.Describe(c.name)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if d.Variant != c.variant || d.Spec.Family != c.family || d.Latent.Scale != c.scale || d.Latent.Shift != c.shift ||
			d.Latent.Channels != c.channels {
			t.Errorf("%s: got %s, family %s, latent %v", c.name, d.Variant, d.Spec.Family, d.Latent)
		}
		if d.Sampling != c.sampling {
			t.Errorf("%s: sampling: got %+v, want %+v", c.name, d.Sampling, c.sampling)
		}
		if _, err := d.Sampling.Build(); err != nil {
			t.Errorf("%s: time line: %v", c.name, err)
		}
		if len(d.Spec.Blocks) != c.blocks || d.Spec.Channels != c.channels || d.Spec.OutChannels != c.out {
			t.Errorf("%s: got %d blocks, %d -> %d channels", c.name, len(d.Spec.Blocks), d.Spec.Channels, d.Spec.OutChannels)
		}
	}
}

// TestParamsCountTheFile compares the parameter counts of the spec with the elements of the recorded checkpoint.
func TestParamsCountTheFile(t *testing.T) {
	for _, name := range []string{
		"flux-a", "flux-b", "flux-c", "sd3-a", "sd3-b", "sd3-c", "pixart-a", "pixart-b",
		"hydit-a", "hydit-b",
	} {
		set, meta, err := tiny.Checkpoint(name)
		if err != nil {
			t.Fatal(err)
		}
		want, inBlocks := int64(0), int64(0)
		for _, n := range set.Names() {
			if n == "y_embedder.y_embedding" { // used only in training, not loaded
				continue
			}
			s, _ := set.Get(n)
			want += int64(s.Len())
			if strings.Contains(n, "blocks.") {
				inBlocks += int64(s.Len())
			}
		}
		d, err := models.OpenDiffusion(set, meta)
		if err != nil {
			t.Fatal(err)
		}
		got := int64(0)
		for _, b := range d.Spec.Blocks {
			got += b.Params
		}
		if d.Spec.Params != want || got != inBlocks {
			t.Errorf("%s: got %d parameters, %d in blocks; want %d and %d", name, d.Spec.Params, got, want, inBlocks)
		}
	}
}

func TestFullCheckpointsAndWrongFiles(t *testing.T) {
	set, meta, err := tiny.Checkpoint("flux-c")
	if err != nil {
		t.Fatal(err)
	}
	full := map[string]weights.Stored{"vae.decoder.conv_in.weight": {Shape: []int{1}, Data: make([]byte, 4)}}
	for _, n := range set.Names() {
		s, _ := set.Get(n)
		full["model.diffusion_model."+n] = s
	}
	d, err := models.OpenDiffusion(weights.FromMap(full), meta)
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Load(ref.New(), dit.Held{Blocks: []dit.Range{}})
	if err != nil {
		t.Fatalf("a full checkpoint: %v", err)
	}
	m.Close()

	delete(full, "model.diffusion_model.img_in.bias")
	if d, err = models.OpenDiffusion(weights.FromMap(full), meta); err != nil {
		t.Fatal(err)
	}
	m, err = d.Load(ref.New(), dit.Held{Blocks: []dit.Range{}})
	var bad *weights.MismatchError
	if !errors.As(err, &bad) || len(bad.Missing) != 1 || bad.Missing[0] != "img_in.bias" || m != nil {
		t.Errorf("without img_in.bias: got model %v, error %v", m, err)
	}

	for _, c := range []struct{ file, want string }{
		{"t5-tiny", "a T5 text encoder"},
		{"vae-flux", "a VAE"},
		{"clip-l-tiny", "a CLIP text encoder"},
	} {
		other, _, err := goldenweights.Set(c.file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := models.OpenDiffusion(other, nil); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "supported: flux, sd3, pixart, hunyuandit") {
			t.Errorf("%s: got error %v, want one that says %q and what is supported", c.file, err, c.want)
		}
	}
	if _, err := models.OpenDiffusion(weights.FromMap(map[string]weights.Stored{
		"double_stream_modulation_img.lin.weight": {},
	}), nil); err == nil || !strings.Contains(err.Error(), "flux2") {
		t.Errorf("flux2: got error %v", err)
	}
}

func TestMetadataOverrides(t *testing.T) {
	set, _, err := tiny.Checkpoint("flux-b")
	if err != nil {
		t.Fatal(err)
	}
	meta := map[string]string{"config": `{"num_heads": 2, "axes_dim": [16, 56, 56], "latent_scale_factor": 0.5, ` +
		`"latent_shift_factor": 0.25, "sampling": {"shift": 2.5}}`}
	d, err := models.OpenDiffusion(set, meta)
	if err != nil {
		t.Fatal(err)
	}
	if d.Latent.Scale != 0.5 || d.Latent.Shift != 0.25 || d.Sampling.Shift != 2.5 {
		t.Errorf("got scale %v, shift %v, sampling %+v", d.Latent.Scale, d.Latent.Shift, d.Sampling)
	}
	if _, err := models.OpenDiffusion(set, map[string]string{"config": "{"}); err == nil {
		t.Error("broken JSON in the metadata was accepted")
	}
}

func TestTinyModelsLoad(t *testing.T) {
	for _, name := range tiny.Names() {
		m, err := tiny.Load(ref.New(), name, dit.Held{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if m.Spec().Family != name {
			t.Errorf("%s: got family %s", name, m.Spec().Family)
		}
		m.Close()
	}
}

// TestDemoCheckpoint checks the description of the example's own file, from its header and metadata.
func TestDemoCheckpoint(t *testing.T) {
	f, err := safetensors.Open("../examples/demo/diffusion_models/demo_flux.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := models.OpenDiffusion(weights.FromFile(f), f.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	// as its metadata says
	if d.Spec.Params != 5158464 || d.Spec.Heads != 6 || len(d.Spec.Blocks) != 6 || d.Spec.TakesGuidance {
		t.Errorf("got %d parameters, %d heads, %d blocks, guidance %v", d.Spec.Params, d.Spec.Heads, len(d.Spec.Blocks),
			d.Spec.TakesGuidance)
	}
	if want := (family.Sampling{Line: family.FlowLine, Shift: 1, Multiplier: 1}); d.Sampling != want ||
		d.Latent.Scale != 0.5728 || d.Latent.Shift != 0.0275 {
		t.Errorf("got sampling %+v, scale %v, shift %v", d.Sampling, d.Latent.Scale, d.Latent.Shift)
	}
}

func TestGuessKindFindsModelAndPrefix(t *testing.T) {
	one := weights.Stored{Shape: []int{1}, Data: make([]byte, 4)}
	for name, want := range map[string]string{
		"joint_blocks.0.context_block.attn.qkv.weight":            "a diffusion model (sd3)",
		"model.diffusion_model.t_block.1.weight":                  "a diffusion model (pixart)",
		"mlp_t5.0.weight":                                         "a diffusion model (hunyuandit)",
		"double_blocks.0.img_attn.norm.key_norm.scale":            "a diffusion model (flux)",
		"diffusion_model.transformer_blocks.0.attn1.to_q.weight":  "a diffusion model (diffusers layout of a transformer)",
		"lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": "a LoRA file",
		"encoder.block.0.layer.0.SelfAttention.q.weight":          "a T5 text encoder",
		"model.layers.0.self_attn.q_proj.weight":                  "a language model",
		"vision_model.encoder.layers.0.mlp.fc1.weight":            "a picture encoder (CLIP vision or SigLIP)",
		"something": "no kind of file that is known",
	} {
		if got := models.GuessKind(weights.FromMap(map[string]weights.Stored{name: one})); got != want {
			t.Errorf("%s: looks like %s, want %s", name, got, want)
		}
	}
}

// TestRelativesAreRefusedByName checks the errors for files of networks that resemble a supported family: they have the
// names that identify it, and others (ComfyUI 0.33.0 comfy/ldm/chroma_radiance and comfy/ldm/lumina, diffusers'
// ChromaTransformer2DModel).
func TestRelativesAreRefusedByName(t *testing.T) {
	radiance := []string{
		"img_in_patch.weight", "txt_in.weight", "distilled_guidance_layer.in_proj.weight",
		"distilled_guidance_layer.norms.0.scale", "double_blocks.0.img_attn.norm.key_norm.scale",
		"nerf_blocks.0.norm.scale",
	}
	for want, files := range map[string][][]string{
		"a diffusion model (chroma radiance)": {
			append(slices.Clone(radiance), "nerf_final_layer.norm.scale"),
			append(slices.Clone(radiance), "nerf_final_layer_conv.norm.scale", "__x0__", "__sequential__"),
			{
				"img_in_patch.weight", "distilled_guidance_layer.in_proj.weight", "distilled_guidance_layer.norms.0.weight",
				"double_blocks.0.img_attn.norm.key_norm.weight",
			},
		},
		"a diffusion model (diffusers layout of chroma)": {{
			"x_embedder.weight", "context_embedder.weight", "distilled_guidance_layer.in_proj.weight",
			"distilled_guidance_layer.norms.0.weight", "distilled_guidance_layer.layers.0.linear_1.weight",
			"transformer_blocks.0.attn.add_q_proj.weight", "single_transformer_blocks.0.proj_mlp.weight",
		}},
		"a diffusion model (z-image in pixel space)": {{
			"x_embedder.weight", "cap_embedder.1.weight", "noise_refiner.0.attention.k_norm.weight",
			"noise_refiner.0.adaLN_modulation.0.weight", "dec_net.cond_embed.weight", "dec_net.input_embedder.embedder.0.weight",
		}},
	} {
		for _, names := range files {
			for _, prefix := range []string{"", "model.diffusion_model."} {
				set := map[string]weights.Stored{}
				for _, name := range names {
					set[prefix+name] = weights.Stored{Shape: []int{1}, Data: make([]byte, 4)}
				}
				_, err := models.OpenDiffusion(weights.FromMap(set), nil)
				if err == nil || !strings.Contains(err.Error(), "looks like "+want) {
					t.Errorf("%s: got error %v, want one that says %q", prefix+names[0], err, want)
				}
			}
		}
	}
}

// TestEveryFamilyInFullCheckpoints checks that every family's tiny model is found under prefixes of full checkpoints.
func TestEveryFamilyInFullCheckpoints(t *testing.T) {
	for _, name := range tiny.Names() {
		set, meta, err := tiny.Checkpoint(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := models.OpenDiffusion(set, meta)
		if err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"model.diffusion_model.", "diffusion_model.", "model."} {
			full := map[string]weights.Stored{}
			for _, n := range set.Names() {
				full[prefix+n], _ = set.Get(n)
			}
			got, err := models.OpenDiffusion(weights.FromMap(full), meta)
			if err == nil {
				got.Spec.Outline, want.Spec.Outline = nil, nil // functions do not compare
			}
			if err != nil || !reflect.DeepEqual(got.Spec, want.Spec) {
				t.Errorf("%s under %s: got %+v, %v; want %+v", name, prefix, got, err, want.Spec)
			}
		}
	}
}

// TestFilesThatLackATensorAreDescribedOrRefused removes every tensor of every small model, one at a time, or leaves it
// without elements. Describing the file must not panic, and a refusal must have a message.
func TestFilesThatLackATensorAreDescribedOrRefused(t *testing.T) {
	for _, name := range tiny.Names() {
		set, meta, err := tiny.Checkpoint(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, lacking := range set.Names() {
			for _, flat := range []bool{false, true} {
				others := map[string]weights.Stored{}
				for _, n := range set.Names() {
					others[n], _ = set.Get(n)
				}
				if delete(others, lacking); flat {
					others[lacking] = weights.Stored{DType: engine.F32, Shape: []int{0}}
				}
				func() {
					defer func() {
						if r := recover(); r != nil {
							t.Errorf("%s without %s (there without values: %v): panic: %v", name, lacking, flat, r)
						}
					}()
					if _, err := models.OpenDiffusion(weights.FromMap(others), meta); err != nil && err.Error() == "" {
						t.Errorf("%s without %s: an error without words", name, lacking)
					}
				}()
			}
		}
	}
}
