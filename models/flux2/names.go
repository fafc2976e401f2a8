package flux2

import "patchbay/models/weights"

// names returns what files call the tensors otherwise: the names of diffusers' Flux2Transformer2DModel, and those of
// ComfyUI's table for FLUX (comfy/utils.py, flux_to_diffusers), which adapters use.
func names() weights.Names {
	const d, s, double, single = "transformer_blocks.*.", "single_transformer_blocks.*.", "double_blocks.*.",
		"single_blocks.*."
	list := append(weights.Joint(),
		weights.Alias{File: s + "attn.to_qkv_mlp_proj", Own: single + "linear1"},
		weights.Alias{File: s + "attn.to_out", Own: single + "linear2"})
	for _, of := range []string{
		"double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation",
	} {
		list = append(list, weights.Alias{File: of + ".linear", Own: of + ".lin"})
	}
	for file, own := range map[string]string{"ff": double + "img_mlp.", "ff_context": double + "txt_mlp."} {
		list = append(list,
			weights.Alias{File: d + file + ".linear_in", Own: own + "0"},
			weights.Alias{File: d + file + ".linear_out", Own: own + "2"})
	}
	for _, from := range []string{"time_guidance_embed.", "time_text_embed."} {
		list = append(list, weights.MLP2(from+"timestep_embedder", "time_in.in_layer", "time_in.out_layer")...)
		list = append(list, weights.MLP2(from+"guidance_embedder", "guidance_in.in_layer", "guidance_in.out_layer")...)
	}
	return weights.Names{Diffusers: list}
}
