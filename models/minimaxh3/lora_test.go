package minimaxh3

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the weights that names in files of adapters stand for. Of the first layer of the MLP and the
// modulations the model holds parts.
func TestAdapterNames(t *testing.T) {
	c, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one, e, all := loratest.One, c.Hidden, c.Heads*c.HeadDim
	loratest.Check(t, Family(),
		one("diffusion_model.blocks.1.attn.qkv_proj", 3*all, e, "blocks.1.attn.qkv_proj", 0),
		one("lora_unet_blocks_0_attn_out_proj", e, all, "blocks.0.attn.out_proj", 0),
		one("diffusion_model.blocks.3.mlp.fc1", 2*c.MLPHidden, e, "blocks.3.mlp.fc1", 0),
		one("lora_unet_blocks_2_mlp_fc2", e, c.MLPHidden, "blocks.2.mlp.fc2", 0),
		one("diffusion_model.token_refiner.blocks.0.mlp.fc1", 2*c.MLPHidden, e, "token_refiner.blocks.0.mlp.fc1", 0),
		one("diffusion_model.video_patch_proj", e, 96, "video_patch_proj", 0),
	)
}
