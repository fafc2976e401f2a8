package hunyuan

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	h, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Family(),
		one("base_model.model.blocks.3.attn1.Wqkv", 3*h.Hidden, h.Hidden, "blocks.3.attn1.Wqkv", 0),
		one("lora_unet_blocks_0_attn2_kv_proj", 2*h.Hidden, h.TextDim, "blocks.0.attn2.kv_proj", 0),
	)
}
