package pixart

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	p, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Family(),
		one("transformer.transformer_blocks.1.attn2.to_v", p.Hidden, p.Hidden, "blocks.1.cross_attn.kv_linear", p.Hidden),
		one("base_model.model.transformer_blocks.0.attn1.to_v", p.Hidden, p.Hidden, "blocks.0.attn.qkv", 2*p.Hidden),
		one("unet.base_model.model.transformer_blocks.0.attn2.to_q", p.Hidden, p.Hidden, "blocks.0.cross_attn.q_linear", 0),
		one("lora_unet_blocks_2_mlp_fc2", p.Hidden, p.MLPHidden, "blocks.2.mlp.fc2", 0),
		one("transformer.adaln_single.linear", 6*p.Hidden, p.Hidden, "t_block.1", 0),
	)
}
