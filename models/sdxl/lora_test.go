package sdxl

import (
	"slices"
	"strings"
	"testing"

	"patchbay/models/family"
	"patchbay/models/lora"
	"patchbay/models/lora/loratest"
	"patchbay/models/weights"
)

// TestRecordedAdapterNames checks every name of a module that ComfyUI takes for the golden models, with the shapes of
// LoRA, LoCon (3x3 down, 1x1 up) and matrices.
func TestRecordedAdapterNames(t *testing.T) {
	for name, f := range map[string]family.Family{
		"sdxl-a": Family(), "sdxl-c": Family(), "sd15-a": SD1(), "refiner-a": Refiner(),
	} {
		table, checked := map[string]string{}, 0
		if name != "refiner-a" {
			table = recordedNames(t, "lora_keys/"+name)
		}
		if name != "sdxl-c" {
			for file, as := range recordedNames(t, "diffusers_to_original/"+name) {
				if module, ok := strings.CutSuffix(file, ".weight"); ok && !strings.HasPrefix(file, "class_embedding.") {
					flat := strings.ReplaceAll(module, ".", "_")
					table["lora_unet_"+flat], table["lycoris_"+flat] = "diffusion_model."+as, "diffusion_model."+as
					processor := strings.TrimSuffix(strings.Replace(module, ".to_", ".processor.to_", 1), ".to_out.0")
					if strings.HasSuffix(module, ".to_out.0") {
						processor += ".to_out"
					}
					table["unet."+processor], table[processor] = "diffusion_model."+as, "diffusion_model."+as
				}
			}
		}
		own := goldenShapes(t, name)
		var declared []weights.Declared
		for n, s := range own {
			declared = append(declared, weights.Declared{Name: n, Shape: s.Shape})
		}
		keys := lora.Diffusion(f.Name, f.Names, declared)
		for module, as := range table {
			as = strings.TrimPrefix(as, "diffusion_model.")
			shape := own[as].Shape
			if len(shape) < 2 { // norms, and what this model lacks
				continue
			}
			down, up := slices.Clone(shape), make([]int, len(shape))
			down[0] = 2
			for i := range up {
				up[i] = 1
			}
			up[0], up[1] = shape[0], 2
			m, err := lora.Match(weights.FromMap(map[string]weights.Stored{
				module + ".lora_down.weight": {Shape: down}, module + ".lora_up.weight": {Shape: up},
			}), keys)
			if err != nil || len(m.Additions) != 1 || m.Additions[0].Name+".weight" != as {
				t.Fatalf("%s: %s: got %+v, %v; want %s", name, module, m, err, as)
			}
			checked++
		}
		if checked < 12 || name == "sdxl-a" && checked < 600 || name == "refiner-a" && checked < 600 {
			t.Errorf("%s: checked %d names", name, checked)
		}
	}
}

// TestAdapterNames checks names of the tiny models.
func TestAdapterNames(t *testing.T) {
	c := Family().Tiny.(Config)
	e := 2 * c.Channels
	loratest.Check(t, Family(),
		loratest.One("lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k", e, c.ContextDim,
			"input_blocks.4.1.transformer_blocks.0.attn2.to_k", 0),
		loratest.One("lora_unet_input_blocks_4_1_proj_in", e, e, "input_blocks.4.1.proj_in", 0),
		loratest.One("unet.mid_block.attentions.0.transformer_blocks.1.attn1.processor.to_out", e, e,
			"middle_block.1.transformer_blocks.1.attn1.to_out.0", 0),
		loratest.One("unet.up_blocks.0.attentions.2.transformer_blocks.1.ff.net.0.proj", 8*e, e,
			"output_blocks.2.1.transformer_blocks.1.ff.net.0.proj", 0),
		loratest.One("lora_unet_up_blocks_1_upsamplers_0_conv", e, 9*e, "output_blocks.5.2.conv", 0),
	)
}
