package zimage

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	z, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Family(),
		one("diffusion_model.layers.1.attention.to_k", z.Hidden, z.Hidden, "layers.1.attention.qkv", z.Hidden),
		one("transformer.noise_refiner.0.attention.to_v", z.Hidden, z.Hidden, "noise_refiner.0.attention.qkv", 2*z.Hidden),
		one("diffusion_model.context_refiner.1.attention.to_out.0", z.Hidden, z.Hidden, "context_refiner.1.attention.out",
			0),
		one("lora_unet_layers_2_feed_forward_w2", z.Hidden, z.MLPHidden, "layers.2.feed_forward.w2", 0),
		one("diffusion_model.layers.0.adaLN_modulation.0", 4*z.Hidden, 256, "layers.0.adaLN_modulation.0", 0),
	)
}

// TestAdapterNamesLumina2 checks the rows and weights that names in files of adapters stand for.
func TestAdapterNamesLumina2(t *testing.T) {
	u, ok := Lumina2().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Lumina2().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Lumina2(),
		one("transformer.layers.1.attention.to_k", u.KVHeads*12, u.Hidden, "layers.1.attention.qkv", u.Hidden),
		one("layers.2.attention.to_v", u.KVHeads*12, u.Hidden, "layers.2.attention.qkv", u.Hidden+u.KVHeads*12),
		one("diffusion_model.layers.0.adaLN_modulation.1", 4*u.Hidden, u.TimeHidden, "layers.0.adaLN_modulation.1", 0),
	)
}
