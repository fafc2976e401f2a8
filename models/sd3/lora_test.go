package sd3

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	s, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	e, last := s.Hidden, s.Blocks-1
	if last != 3 {
		t.Fatalf("the tiny SD3 has %d blocks, the names below are for 4", s.Blocks)
	}
	one := loratest.One
	loratest.Check(t, Family(),
		one("transformer.transformer_blocks.1.attn.to_k", e, e, "joint_blocks.1.x_block.attn.qkv", e),
		one("transformer.transformer_blocks.1.attn.add_v_proj", e, e, "joint_blocks.1.context_block.attn.qkv", 2*e),
		one("lora_transformer_transformer_blocks_0_attn_to_out_0", e, e, "joint_blocks.0.x_block.attn.proj", 0),
		one("base_model.model.transformer_blocks.0.norm1_context.linear", 6*e, e,
			"joint_blocks.0.context_block.adaLN_modulation.1", 0),
		loratest.Row{
			Module: "transformer.transformer_blocks.3.norm1_context.linear", N: 2 * e, K: e,
			Want: []loratest.Destination{
				{Name: "joint_blocks.3.context_block.adaLN_modulation.1", Rows: e, UpRow: e},
				{Name: "joint_blocks.3.context_block.adaLN_modulation.1", First: e, Rows: e},
			},
		},
		loratest.Row{Module: "lycoris_norm_out_linear", N: 2 * e, K: e, Want: []loratest.Destination{
			{Name: "final_layer.adaLN_modulation.1", Rows: e, UpRow: e},
			{Name: "final_layer.adaLN_modulation.1", First: e, Rows: e},
		}},
		one("lora_unet_joint_blocks_2_x_block_mlp_fc1", s.MLPHidden, e, "joint_blocks.2.x_block.mlp.fc1", 0),
		one("transformer.pos_embed.proj", e, s.Channels*s.PatchSize*s.PatchSize, "x_embedder.proj", 0),
	)
}
