package qwenimage

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	q, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Family(),
		one("transformer.transformer_blocks.1.attn.to_k", q.Hidden, q.Hidden, "transformer_blocks.1.attn.to_k", 0),
		one("transformer_blocks.3.attn.to_add_out", q.Hidden, q.Hidden, "transformer_blocks.3.attn.to_add_out", 0),
		one("diffusion_model.transformer_blocks.0.txt_mod.1", 6*q.Hidden, q.Hidden, "transformer_blocks.0.txt_mod.1", 0),
		one("lora_unet_transformer_blocks_2_img_mlp_net_0_proj", q.MLPHidden, q.Hidden,
			"transformer_blocks.2.img_mlp.net.0.proj", 0),
		one("lycoris_transformer_blocks_0_attn_to_out_0", q.Hidden, q.Hidden, "transformer_blocks.0.attn.to_out.0", 0),
	)
}
