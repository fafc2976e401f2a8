package flux2

import "patchbay/models/weights"

// names returns what files call the tensors otherwise: the names of diffusers' Flux2Transformer2DModel, and those of
// ComfyUI's table for FLUX (comfy/utils.py, flux_to_diffusers), which adapters use.
func names() weights.Names {
	list := weights.Joint()
	for _, of := range []string{
		"double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation",
	} {
		list = append(list, weights.Alias{File: of + ".linear", Own: of + ".lin"})
	}
	for _, from := range []string{"time_guidance_embed.", "time_text_embed."} {
		list = append(list, weights.MLP2(from+"timestep_embedder", "time_in.in_layer", "time_in.out_layer")...)
		list = append(list, weights.MLP2(from+"guidance_embedder", "guidance_in.in_layer", "guidance_in.out_layer")...)
	}
	attention := weights.Alias{
		File: "single_blocks.*.linear1_qkv", Own: "single_blocks.*.linear1",
		Rows: func(_, k int) (int, int) { return 0, 3 * k },
	}
	return weights.Names{Diffusers: list, Original: []weights.Alias{attention}}
}
