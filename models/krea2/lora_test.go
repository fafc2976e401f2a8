package krea2

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	k, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Family(),
		one("diffusion_model.blocks.1.attn.wk", k.KVHeads*16, k.Hidden, "blocks.1.attn.wk", 0),
		one("transformer.transformer_blocks.2.attn.to_out.0", k.Hidden, k.Hidden, "blocks.2.attn.wo", 0),
		one("lycoris_transformer_blocks_0_attn_to_gate", k.Hidden, k.Hidden, "blocks.0.attn.gate", 0),
		one("transformer_blocks.3.ff.gate", k.MLPHidden, k.Hidden, "blocks.3.mlp.gate", 0),
		one("text_fusion.refiner_blocks.1.attn.to_v", k.TextWidth, k.TextWidth, "txtfusion.refiner_blocks.1.attn.wv", 0),
		one("diffusion_model.txt_in.linear_1", k.Hidden, k.TextWidth, "txtmlp.1", 0),
	)
}
