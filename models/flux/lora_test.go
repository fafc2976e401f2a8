package flux

import (
	"testing"

	"patchbay/models/lora/loratest"
)

// TestAdapterNamesChroma checks the rows and weights that names in files of adapters stand for.
func TestAdapterNamesChroma(t *testing.T) {
	a, ok := Chroma().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Chroma().Tiny)
	}
	one := loratest.One
	loratest.Check(t, Chroma(),
		one("transformer.transformer_blocks.1.attn.to_k", a.Hidden, a.Hidden, "double_blocks.1.img_attn.qkv", a.Hidden),
		one("lora_unet_distilled_guidance_layer_layers_1_in_layer", a.Distilled, a.Distilled,
			"distilled_guidance_layer.layers.1.in_layer", 0),
		one("diffusion_model.single_blocks.2.linear2", a.Hidden, a.Hidden+a.MLPHidden, "single_blocks.2.linear2", 0),
	)
}
