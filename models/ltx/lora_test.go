package ltx

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the weights that names in files of adapters stand for: those that ComfyUI takes for the first
// one (tests/golden/ltx/detection.json), and others.
func TestAdapterNames(t *testing.T) {
	c, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one, e, a := loratest.One, c.Hidden, c.Sound
	const q = "transformer_blocks.0.attn1.to_q"
	loratest.Check(t, Family(),
		one("diffusion_model.transformer_blocks.0.attn1.to_q", e, e, q, 0),
		one("lora_unet_transformer_blocks_0_attn1_to_q", e, e, q, 0),
		one("transformer_blocks.0.attn1.to_q", e, e, q, 0),
		one("diffusion_model.transformer_blocks.1.audio_to_video_attn.to_out.0", e, a,
			"transformer_blocks.1.audio_to_video_attn.to_out.0", 0),
		one("diffusion_model.transformer_blocks.2.video_to_audio_attn.to_k", a, e,
			"transformer_blocks.2.video_to_audio_attn.to_k", 0),
		one("diffusion_model.transformer_blocks.3.audio_ff.net.0.proj", 4*a, a,
			"transformer_blocks.3.audio_ff.net.0.proj", 0),
		one("diffusion_model.adaln_single.linear", 9*e, e, "adaln_single.linear", 0),
	)
}
