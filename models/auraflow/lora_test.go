package auraflow

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	v, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Family(),
		one("transformer.joint_transformer_blocks.1.attn.to_k", v.Hidden, v.Hidden, "double_layers.1.attn.w2k", 0),
		one("transformer.joint_transformer_blocks.0.attn.add_v_proj", v.Hidden, v.Hidden, "double_layers.0.attn.w1v", 0),
		one("transformer.single_transformer_blocks.2.ff.out_projection", v.Hidden, v.MLPHidden,
			"single_layers.2.mlp.c_proj", 0),
		one("transformer.joint_transformer_blocks.0.ff_context.linear_2", v.MLPHidden, v.Hidden,
			"double_layers.0.mlpC.c_fc2", 0),
		one("lora_unet_single_layers_1_modCX_1", 6*v.Hidden, v.Hidden, "single_layers.1.modCX.1", 0),
	)
}
