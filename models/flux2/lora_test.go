package flux2

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	f, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Family(),
		one("diffusion_model.double_blocks.1.img_mlp.0", 2*f.MLPHidden, f.Hidden, "double_blocks.1.img_mlp.0", 0),
		one("transformer.transformer_blocks.1.attn.to_k", f.Hidden, f.Hidden, "double_blocks.1.img_attn.qkv", f.Hidden),
		one("transformer.transformer_blocks.2.ff_context.linear_in", 2*f.MLPHidden, f.Hidden, "double_blocks.2.txt_mlp.0",
			0),
		one("lora_unet_single_blocks_3_linear1", 3*f.Hidden+2*f.MLPHidden, f.Hidden, "single_blocks.3.linear1", 0),
		one("transformer.single_transformer_blocks.0.attn.to_qkv_mlp_proj", 3*f.Hidden+2*f.MLPHidden, f.Hidden,
			"single_blocks.0.linear1", 0),
		one("base_model.model.single_transformer_blocks.2.attn.to_out", f.Hidden, f.Hidden+f.MLPHidden,
			"single_blocks.2.linear2", 0),
	)
}
